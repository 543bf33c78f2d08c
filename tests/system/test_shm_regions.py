"""Regions registered by name, with real servers: placement, bounds, truncation, deaths."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client, Code, NaiadError, RequestError
from naiad.testing.server import Server, serve
from support.named_region import NamedRegion

MODELS = Path(__file__).resolve().parents[2] / "model_repository"
SHAPE = (1, 3, 224, 224)
SIZE = 4 * 3 * 224 * 224
WAIT_SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    shutil.copytree(MODELS / "identbig", repository / "identbig")
    with serve(repository) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Client:
    return server.client()


@pytest.fixture
def region() -> Iterator[NamedRegion]:
    """Room for an input and an output with canaries around both; not registered yet."""
    with NamedRegion(3 * SIZE) as region:
        yield region


@pytest.fixture
def registered(region: NamedRegion, client: Client) -> Iterator[NamedRegion]:
    yield region.register(client)
    client.region_unregister(region.name)


def image(seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).random(SHAPE, np.float32)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < end, f"not {what} within {WAIT_SECONDS_MAX} s"
        time.sleep(0.02)


def worker_pid(server: Server, client: Client) -> int:
    """Of the process that runs the model."""
    (row,) = [row for row in client.status()["instances"] if row["model"] == "identbig"]
    pid: int = server.pids[row["slot"]]
    return pid


def refused(client: Client, region: NamedRegion, inputs: tuple[int, int]) -> RequestError:
    """The error for input bytes at (offset, size)."""
    with pytest.raises(RequestError) as caught:
        client.infer("identbig", [region.input("INPUT0", SHAPE, *inputs)])
    return caught.value


def test_tensors_are_read_and_written_where_they_lie(
    client: Client, registered: NamedRegion
) -> None:
    given = image()
    registered.write(13, given)
    offset = SIZE + 1001
    result = client.infer(
        "identbig",
        [registered.input("INPUT0", SHAPE, 13, SIZE)],
        {"OUTPUT0": registered.output(offset, SIZE)},
    )
    assert result.names == ("OUTPUT0",)
    assert registered.read(offset, SIZE) == given.tobytes()
    assert registered.damage((13, SIZE), (offset, SIZE)) == []


def test_an_output_place_may_be_larger_than_the_output(
    client: Client, registered: NamedRegion
) -> None:
    given = image(1)
    client.infer("identbig", {"INPUT0": given}, {"OUTPUT0": registered.output(100, 2 * SIZE)})
    assert registered.read(100, SIZE) == given.tobytes()
    assert registered.damage((100, SIZE)) == []


def test_an_output_place_that_is_too_small_is_refused_in_tritons_words(
    client: Client, registered: NamedRegion
) -> None:
    with pytest.raises(NaiadError, match="should be at least 602112 bytes to hold") as caught:
        client.infer("identbig", {"INPUT0": image()}, {"OUTPUT0": registered.output(0, SIZE - 1)})
    assert isinstance(caught.value, RequestError)
    assert registered.damage() == []


@pytest.mark.parametrize(
    "place",
    [
        (3 * SIZE, SIZE),
        (2 * SIZE + 1, SIZE),
        (2**62, SIZE),
        (2**63 - 1, SIZE),
        (2**63 - SIZE, SIZE),
    ],
)
def test_ranges_outside_of_the_region_are_refused(
    client: Client, registered: NamedRegion, place: tuple[int, int]
) -> None:
    fault = refused(client, registered, place)
    assert "Invalid offset" in fault.message
    assert fault.code is Code.INVALID_ARGUMENT
    with pytest.raises(RequestError, match="Invalid offset"):
        client.infer("identbig", {"INPUT0": image()}, {"OUTPUT0": registered.output(*place)})
    assert registered.damage() == []


@pytest.mark.parametrize("size", [0, 4, SIZE - 4, SIZE + 4, 2 * SIZE])
def test_bytes_that_are_not_the_tensors_are_refused(
    client: Client, registered: NamedRegion, size: int
) -> None:
    fault = refused(client, registered, (0, size))
    assert str(SIZE) in fault.message
    assert str(size) in fault.message


def test_only_the_registered_part_is_used(client: Client, region: NamedRegion) -> None:
    given = image(2)
    region.write(SIZE, given)
    region.register(client, offset=SIZE, size=SIZE)
    try:
        result = client.infer("identbig", [region.input("INPUT0", SHAPE, 0, SIZE)])
        assert (result["OUTPUT0"] == given).all()
        assert "Invalid offset" in refused(client, region, (1, SIZE)).message
    finally:
        client.region_unregister(region.name)


def test_a_key_that_cannot_be_is_refused_at_registration(
    client: Client, region: NamedRegion
) -> None:
    for key, size, text in [
        ("naiad.server.client.1.0123456789abcdef", 1, "reserved"),
        ("/naiad.x", 1, "reserved"),
        ("no-such-object-of-naiads-tests", 1, "Unable to open shared memory region"),
        ("..", 1, "names nothing"),
        ("a/b", 1, "must not contain"),
        (region.key, region.size + 1, "invalid args"),
    ]:
        with pytest.raises(RequestError, match=text):
            client.region_register(region.name, key, size)
    assert not client.region_status()


def test_a_name_is_registered_once(client: Client, registered: NamedRegion) -> None:
    with pytest.raises(RequestError, match="already in manager") as caught:
        registered.register(client)
    assert caught.value.code is Code.ALREADY_EXISTS
    (row,) = client.region_status(registered.name)
    assert row["byte_size"] == registered.size


def test_every_session_may_use_a_name(server: Server, registered: NamedRegion) -> None:
    given = image(3)
    registered.write(0, given)
    with server.client() as other:
        result = other.infer("identbig", [registered.input("INPUT0", SHAPE, 0, SIZE)])
        assert (result["OUTPUT0"] == given).all()


def test_an_unregistered_region_is_unknown_and_left_alone(
    client: Client, region: NamedRegion
) -> None:
    region.register(client)
    client.region_unregister(region.name)
    client.region_unregister(region.name)
    fault = refused(client, region, (0, SIZE))
    assert fault.code is Code.NOT_FOUND
    assert os.path.exists(region.path)


def test_a_truncation_before_a_read_fails_that_request_alone(
    server: Server, client: Client, registered: NamedRegion
) -> None:
    pid = worker_pid(server, client)
    given = image(4)
    registered.write(0, given)
    good = [registered.input("INPUT0", SHAPE, 0, SIZE)]
    bad = [registered.input("INPUT0", SHAPE, SIZE, SIZE)]
    assert (client.infer("identbig", good)["OUTPUT0"] == given).all()
    registered.truncate(SIZE + 5000)
    fault = refused(client, registered, (SIZE, SIZE))
    assert fault.code is Code.REGION_TRUNCATED
    assert (client.infer("identbig", good)["OUTPUT0"] == given).all()
    with pytest.raises(RequestError) as caught:
        client.infer("identbig", good, {"OUTPUT0": registered.output(SIZE, SIZE)})
    assert caught.value.code is Code.REGION_TRUNCATED
    registered.truncate(registered.size)
    after = client.infer("identbig", bad)["OUTPUT0"].reshape(-1)
    assert after[-1] == 0, "what was cut off is zero now"
    assert worker_pid(server, client) == pid, "no worker was harmed"


def test_a_truncation_during_a_read_costs_a_worker_and_that_request(
    server: Server, client: Client, registered: NamedRegion
) -> None:
    pid = worker_pid(server, client)
    guilty = client.submit(
        "identbig",
        [registered.input("INPUT0", SHAPE, 0, SIZE)],
        parameters={"sleep_ms": 700},
    )
    innocent = [client.submit("identbig", {"INPUT0": image(seed)}) for seed in range(3)]
    wait_until(lambda: any(row["executing_s"] for row in client.status()["instances"]), "executing")
    registered.truncate(0)
    with pytest.raises(RequestError) as caught:
        guilty.result(WAIT_SECONDS_MAX)
    assert caught.value.code is Code.REGION_TRUNCATED
    for seed, future in enumerate(innocent):
        assert (future.result(WAIT_SECONDS_MAX)["OUTPUT0"] == image(seed)).all()
    assert worker_pid(server, client) != pid
    (row,) = [row for row in client.status()["models"] if row["name"] == "identbig"]
    assert row["state"] == "READY"


def test_a_region_whose_object_is_gone_ends_by_itself(client: Client, region: NamedRegion) -> None:
    region.register(client)
    region.unlink()
    wait_until(lambda: not client.region_status(), "forgotten")
    assert refused(client, region, (0, SIZE)).code is Code.NOT_FOUND


def test_a_killed_worker_writes_no_more_and_the_request_is_run_again(
    server: Server, client: Client, registered: NamedRegion
) -> None:
    given = image(5)
    registered.write(0, given)
    future = client.submit(
        "identbig",
        [registered.input("INPUT0", SHAPE, 0, SIZE)],
        {"OUTPUT0": registered.output(2 * SIZE, SIZE)},
        parameters={"sleep_ms": 300},
    )
    wait_until(lambda: any(row["executing_s"] for row in client.status()["instances"]), "executing")
    os.kill(worker_pid(server, client), signal.SIGKILL)
    future.result(WAIT_SECONDS_MAX)
    assert registered.read(2 * SIZE, SIZE) == given.tobytes()
    assert registered.damage((0, SIZE), (2 * SIZE, SIZE)) == []


def test_registrations_survive_the_broker(
    server: Server, client: Client, registered: NamedRegion
) -> None:
    given = image(6)
    registered.write(0, given)
    before = client.region_status()
    broker = server.pids["broker"]
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: server.pids.get("broker", broker) != broker, "restarted")
    result = client.infer("identbig", [registered.input("INPUT0", SHAPE, 0, SIZE)])
    assert (result["OUTPUT0"] == given).all()
    assert client.region_status() == before
    with pytest.raises(RequestError, match="already in manager"):
        client.region_register(registered.name, registered.key, 1)

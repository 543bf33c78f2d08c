"""Arrays through shared memory: placed, leased, returned, refused. Nothing is left in /dev/shm."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import posix_ipc
import pytest

from naiad.client import InferInput, RequestError, Unavailable
from support.clients import Broker, Caller, Connect

LARGE = np.arange(50_000, dtype=np.float64).reshape(5, 10_000)
SMALL = np.arange(4, dtype=np.int32)


def segments() -> set[str]:
    mine = f"naiad.echo.client.{os.getpid()}."
    return {name for name in os.listdir("/dev/shm") if name.startswith(mine)}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Must be requested before `connect`, which closes the clients."""
    before = segments()
    yield
    gc.collect()
    assert segments() <= before


def released(client: Caller) -> list[Any]:
    gc.collect()
    client.do("live")
    found = [event[1] for event in client.call("seen") if event[0] == "Release"]
    return [lease for leases in found for lease in leases]


def test_large_arrays_travel_by_reference(broker: Broker, connect: Connect) -> None:
    client = connect()
    for _ in range(3):
        result = client.infer("echo", {"large": LARGE, "small": SMALL, "turned": LARGE.T})
        np.testing.assert_array_equal(result["large"], LARGE)
        np.testing.assert_array_equal(result["turned"], LARGE.T)
        np.testing.assert_array_equal(result["small"], SMALL)
    assert segments()
    registered = [event for event in client.call("seen") if event[0] == "RegisterRegion"]
    assert len(registered) == len(segments())


def test_inline_clients_make_no_segments(broker: Broker, connect: Connect) -> None:
    client = connect(transport="inline")
    np.testing.assert_array_equal(client.infer("echo", {"x": LARGE})["x"], LARGE)
    assert not segments()


def test_shm_clients_share_small_arrays_too(broker: Broker, connect: Connect) -> None:
    client = connect(transport="shm")
    np.testing.assert_array_equal(client.infer("echo", {"x": SMALL})["x"], SMALL)
    assert segments()


def test_raw_bytes_and_strings_are_shared_when_large(broker: Broker, connect: Connect) -> None:
    client = connect()
    text = np.array([b"x" * 50_000, b""], dtype=object)
    result = client.infer("echo", {"text": text})
    assert result["text"].tolist() == text.tolist()
    raw = client.infer("echo", [InferInput("raw", "UINT8", (100_000,), b"7" * 100_000)])
    assert bytes(raw.outputs[0].data) == b"7" * 100_000
    assert segments()


def test_a_lease_ends_with_the_last_array(broker: Broker, connect: Connect) -> None:
    client = connect()
    result = client.infer("lease", {"a": SMALL, "b": SMALL})
    kept = result["a"][1:3]
    del result
    assert released(client) == []
    np.testing.assert_array_equal(kept, SMALL[1:3])
    del kept
    assert len(released(client)) == 1


def test_results_stay_valid_when_the_client_is_closed(broker: Broker, connect: Connect) -> None:
    client = connect()
    array = client.infer("lease", {"a": LARGE})["a"]
    client.close()
    broker.stop()
    np.testing.assert_array_equal(array, LARGE)


def test_leases_are_named_to_the_next_broker(broker: Broker, connect: Connect) -> None:
    client = connect()
    result = client.infer("lease", {"a": SMALL})
    client.call("restart")
    client.do("live")
    hellos = [event for event in client.call("seen") if event[0] == "Hello"]
    assert [len(leases) for *_, leases in hellos] == [0, 1]
    del result


def test_an_abandoned_answer_releases_its_lease(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.abandon("stubborn", {"a": SMALL})
    assert len(released(client)) == 1


def test_outputs_are_written_where_the_client_wants(broker: Broker, connect: Connect) -> None:
    client = connect()
    region = client.do("region", 3 * LARGE.nbytes)
    region.array("FP64", LARGE.shape)[:] = LARGE
    given = region.input("x", "FP64", LARGE.shape)
    place = region.place(2 * LARGE.nbytes, LARGE.nbytes)
    result = client.infer("echo", [given], {"x": place})
    np.testing.assert_array_equal(result["x"], LARGE)
    written = region.array("FP64", LARGE.shape, 2 * LARGE.nbytes)
    np.testing.assert_array_equal(written, LARGE)
    assert np.shares_memory(result["x"], written)
    with pytest.raises(RequestError, match="do not fit"):
        region.place(LARGE.nbytes, 3 * LARGE.nbytes)
    region.close()
    with pytest.raises(RequestError, match="closed"):
        region.place()
    np.testing.assert_array_equal(result["x"], LARGE)


def test_a_region_is_free_when_nothing_uses_it(broker: Broker, connect: Connect) -> None:
    client = connect()
    region = client.do("region", 1 << 20)
    array = region.array("UINT8", (100,))
    counters = client.client._memory._memory.counters
    region.close()
    del region
    assert counters().used_bytes >= 1 << 20
    del array
    assert counters().used_bytes == 0


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
def test_memory_of_a_running_request_is_kept_until_released(
    broker: Broker, connect: Connect, how: str
) -> None:
    client = connect()
    client.infer("echo", {"x": LARGE})
    used = client.client._memory._memory.counters
    if how == "timeout":
        with pytest.raises(Unavailable, match="expired"):
            client.infer("expire", {"x": LARGE})
        assert used().used_bytes >= LARGE.nbytes
        client.call("release")
    else:
        client.abandon("silent", {"x": LARGE})
    client.do("live")
    gc.collect()
    assert used().used_bytes == 0


def test_memory_in_doubt_is_asked_back_from_the_next_broker(
    broker: Broker, connect: Connect
) -> None:
    client = connect()
    with pytest.raises(Unavailable, match="expired"):
        client.infer("expire", {"x": LARGE})
    client.call("restart")
    client.do("live")
    infers = [event for event in client.call("seen") if event[:2] == ["Infer", "expire"]]
    assert infers[-1][3] == 2
    assert client.client._memory._memory.counters().used_bytes >= LARGE.nbytes
    client.call("release")
    gc.collect()
    assert client.client._memory._memory.counters().used_bytes == 0


def test_regions_are_registered_with_the_next_broker(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.infer("echo", {"x": LARGE})
    client.call("restart")
    np.testing.assert_array_equal(client.infer("echo", {"x": LARGE})["x"], LARGE)
    registered = [event for event in client.call("seen") if event[0] == "RegisterRegion"]
    assert len(registered) == 2


def test_a_server_that_takes_no_regions_gets_everything_inline(
    run_dir: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(run_dir).start("--no-regions")
    try:
        client = connect()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                np.testing.assert_array_equal(client.infer("echo", {"x": LARGE})["x"], LARGE)
        assert caplog.text.count("refused shared memory") == 1
    finally:
        broker.stop()


def test_a_segment_of_the_users_own(broker: Broker, connect: Connect) -> None:
    client = connect()
    key = f"/client-test.{os.getpid()}"
    memory = posix_ipc.SharedMemory(key, posix_ipc.O_CREX, size=LARGE.nbytes)
    try:
        region = client.do("attach", key)
        region.array("FP64", LARGE.shape)[:] = LARGE
        result = client.infer("echo", [region.input("x", "FP64", LARGE.shape)])
        np.testing.assert_array_equal(result["x"], LARGE)
        client.do("detach", region)
        assert os.path.exists(f"/dev/shm{key}")
    finally:
        memory.close_fd()
        memory.unlink()
    with pytest.raises(RequestError, match="Unable to open"):
        client.do("attach", "/no-such-segment")


@pytest.mark.parametrize("role", ["my tool/7", "worker", "Üben"])
def test_a_role_may_be_any_text(broker: Broker, connect: Connect, role: str) -> None:
    client = connect(role=role)
    np.testing.assert_array_equal(client.infer("echo", {"x": LARGE})["x"], LARGE)
    assert len(segments()) == 1  # its name does not hold the role

"""Shared memory by name through both doors: bounds, truncation, owners that are killed."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client
from naiad.testing.server import Server
from support.front_door import Door, Given, Refused, Shared
from support.named_region import NamedRegion
from support.waiting import wait_until

SIZE = 4096
VALUES = np.arange(16, dtype="<f4")
BYTES = VALUES.tobytes()


@pytest.fixture
def region(door: Door) -> Iterator[NamedRegion]:
    """Registered whole, for as long as the test."""
    with NamedRegion(SIZE) as region:
        door.register(region.name, region.key, SIZE)
        yield region
        door.unregister(region.name)


def from_region(region: NamedRegion, offset: int = 0, byte_size: int = 64) -> list[Given]:
    return [Given("INPUT0", "FP32", [16], Shared(region.name, byte_size, offset))]


def to_region(region: NamedRegion, offset: int, byte_size: int) -> list[tuple[str, Shared]]:
    return [("OUTPUT0", Shared(region.name, byte_size, offset))]


def test_tensors_are_read_and_written_where_they_lie_at_any_offset(
    door: Door, region: NamedRegion
) -> None:
    region.write(13, VALUES)
    door.infer("fp32", from_region(region, 13), to_region(region, 1001, 64))
    assert region.read(1001, 64) == BYTES
    assert region.damage((13, 64), (1001, 64)) == []


def test_a_region_may_begin_anywhere_in_its_object(door: Door, region: NamedRegion) -> None:
    name = f"part{secrets.token_hex(4)}"
    door.register(name, region.key, 100, 13)
    region.write(13, VALUES)
    found = door.infer("fp32", [Given("INPUT0", "FP32", [16], Shared(name, 64))])
    assert found["OUTPUT0"].data == BYTES
    with pytest.raises(Refused, match="Invalid offset"):
        door.infer("fp32", [Given("INPUT0", "FP32", [16], Shared(name, 64, 37))])
    door.unregister(name)


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [
        (SIZE, 64),
        (SIZE - 63, 64),
        (2**62, 64),
        (2**63 - 1, 64),
        (2**63 - 64, 64),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_places_outside_of_the_region_are_refused(
    door: Door, region: NamedRegion, offset: int, byte_size: int
) -> None:
    for inputs, outputs in (
        (from_region(region, offset, byte_size), ()),
        ([Given("INPUT0", "FP32", [16], BYTES)], to_region(region, offset, byte_size)),
    ):
        with pytest.raises(Refused) as caught:
            door.infer("fp32", inputs, outputs)
        assert caught.value.code == "INVALID_ARGUMENT"
    assert region.damage() == []


@pytest.mark.parametrize("byte_size", [0, 4, 60, 68])
def test_a_place_of_another_size_than_its_input_is_refused_with_both_sizes(
    door: Door, region: NamedRegion, byte_size: int
) -> None:
    with pytest.raises(Refused, match="64") as caught:
        door.infer("fp32", from_region(region, 0, byte_size))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert str(byte_size) in caught.value.text


@pytest.mark.parametrize("byte_size", [0, 63])
def test_a_place_too_small_for_its_output_is_refused(
    door: Door, region: NamedRegion, byte_size: int
) -> None:
    with pytest.raises(Refused) as caught:
        door.infer("fp32", [Given("INPUT0", "FP32", [16], BYTES)], to_region(region, 0, byte_size))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert region.damage() == []


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [(0, SIZE + 1), (1, SIZE), (SIZE, 1), (0, 2**63), (2**63, 1), (2**64 - 1, 2**64 - 1)],
)
def test_a_registration_beyond_its_object_is_refused(
    door: Door, region: NamedRegion, offset: int, byte_size: int
) -> None:
    with pytest.raises(Refused) as caught:
        door.register("beyond", region.key, byte_size, offset)
    assert caught.value.code == "INVALID_ARGUMENT"
    wrong = next(
        (one for one in (("offset", offset), ("byte_size", byte_size)) if one[1] >= 2**63), None
    )
    if wrong is not None:
        said = f"invalid args: {wrong[0]} {wrong[1]}, expected 0 to {2**63 - 1}"
        assert said in str(caught.value)
    assert "beyond" not in door.regions()


def test_a_registration_of_nothing_is_refused(door: Door, region: NamedRegion) -> None:
    with pytest.raises(Refused) as caught:
        door.register("nothing", region.key, 0)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_a_region_that_was_truncated_fails_its_requests_alone(
    door: Door, region: NamedRegion, server: Server
) -> None:
    workers = worker_pids(server)
    region.write(0, VALUES)
    assert door.infer("fp32", from_region(region))["OUTPUT0"].data == BYTES
    region.truncate(0)
    for inputs, outputs in (
        (from_region(region), ()),
        ([Given("INPUT0", "FP32", [16], BYTES)], to_region(region, 0, 64)),
    ):
        with pytest.raises(Refused) as caught:
            door.infer("fp32", inputs, outputs)
        assert caught.value.code == "INVALID_ARGUMENT"
    assert worker_pids(server) == workers
    inline = [Given("INPUT0", "FP32", [16], BYTES)]
    assert door.infer("fp32", inline)["OUTPUT0"].data == BYTES


def worker_pids(server: Server) -> set[int]:
    apart = ("supervisor", "broker", "gateway-0")
    return {pid for name, pid in server.pids.items() if name not in apart}


def test_a_region_whose_object_is_gone_is_not_used(door: Door, region: NamedRegion) -> None:
    region.unlink()

    wait_until(lambda: region.name not in door.regions(), "the region forgotten")
    with pytest.raises(Refused) as caught:
        door.infer("fp32", from_region(region))
    assert caught.value.code == "NOT_FOUND"


OWNER = """
import sys
path, size = sys.argv[1], int(sys.argv[2])
with open(path, "xb") as file:
    file.write(bytes(size))
print("there", flush=True)
sys.stdin.read()
"""


def test_regions_of_killed_owners_end_when_their_objects_do(
    door: Door, native: Client, server: Server
) -> None:
    """Their registrations and mappings go; the files stay their creators' to remove."""
    before = door.regions()
    paths = [Path(f"/dev/shm/t{secrets.token_hex(8)}") for _ in range(20)]
    for path in paths:
        owner = subprocess.Popen(
            [sys.executable, "-S", "-c", OWNER, str(path), str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"there\n"
            door.register(path.name, path.name, SIZE)
            place = Shared(path.name, 64)
            door.infer("fp32", [Given("INPUT0", "FP32", [16], place)])
            owner.kill()
    assert all(path.exists() for path in paths), "naiad removes nothing that it did not create"
    for path in paths:
        path.unlink()
    wait_until(lambda: door.regions() == before, "the registrations gone")
    names = {path.name for path in paths}
    wait_until(lambda: not mapped(server, names), "the mappings gone")


def mapped(server: Server, names: set[str]) -> set[str]:
    """Which of these segments some process of the server still maps."""
    found = set()
    for pid in server.pids.values():
        text = Path(f"/proc/{pid}/maps").read_text()
        found |= {name for name in names if name in text}
    return found

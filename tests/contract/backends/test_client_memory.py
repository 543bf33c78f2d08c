"""Clients' shared memory registered with CUDA: real segments and mappings, and the fake device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.protocol.messages import Region
from naiad.shm.layout import RANDOM_BYTES, segment_name
from naiad.shm.mapped_memory import MappedMemory
from naiad.shm.mappings import Mappings
from naiad.shm.segment import Segment
from naiad.worker.backends.tensorrt import client_memory
from naiad.worker.regions import RegionTable
from support import engines, fake_cudart
from support.backend_requests import Served
from support.engines import AFFINE, load, put_plan, random

ROW = 16


@pytest.fixture
def gpu() -> Iterator[fake_cudart.Device]:
    device = fake_cudart.reset()
    yield device
    device.close()


@pytest.fixture
def segment() -> Iterator[Segment]:
    """Region 7 of a client: two pages."""
    key = segment_name("t", "client", os.getpid(), os.urandom(RANDOM_BYTES))
    with Segment.create(key, 8192, region_id=7) as found:
        yield found


@pytest.fixture
def regions(segment: Segment) -> RegionTable:
    table = RegionTable()
    table.define([segment.region])
    return table


@pytest.fixture
def served(tmp_path: Path, gpu: fake_cudart.Device) -> Served:
    return load(put_plan(engines.write_affine(tmp_path / "affine"), AFFINE))


def request_in(
    served: Served,
    regions: RegionTable,
    array: Any,
    *,
    at: int = 0,
    to: int | None = None,
    region: int = 7,
) -> Any:
    """A request whose input lies in region 7, and whose output goes there too if `to` says so."""
    size = array.nbytes
    regions.writable(region, at, size)[:] = array.tobytes()
    request = served.request({"x": array})
    request.inputs["x"].buffer = regions.readable(region, at, size)
    if to is not None:
        request.places["y"] = np.frombuffer(regions.writable(region, to, size), np.uint8)
    return request


def test_the_device_reads_and_writes_the_clients_memory(
    served: Served, regions: RegionTable, segment: Segment, gpu: fake_cudart.Device
) -> None:
    first, second = random(2, 4), random(1, 4, seed=2)
    before = gpu.copies.copy()
    served.answers(
        request_in(served, regions, first, at=0, to=4096),
        request_in(served, regions, second, at=512, to=5000),
    )
    for offset, array in ((4096, first), (5000, second)):
        found = np.frombuffer(segment.view[offset : offset + array.nbytes], np.float32)
        np.testing.assert_array_equal(found.reshape(array.shape), 2 * array + 1)
    copies = gpu.copies[len(before) :]
    (address,) = gpu.registered
    assert [(kind, host - address, size) for kind, host, size in copies] == [
        ("in", 0, 2 * ROW),
        ("in", 512, ROW),
        ("out", 4096, 2 * ROW),
        ("out", 5000, ROW),
    ]


def test_each_mapping_is_registered_once(
    served: Served, regions: RegionTable, gpu: fake_cudart.Device
) -> None:
    for _ in range(3):
        served.answers(request_in(served, regions, random(1, 4), to=4096))
    assert gpu.calls["cudaHostRegister"] == 1
    assert [size for size, _ in gpu.registered.values()] == [8192]


def test_memory_is_unregistered_before_a_forgotten_region_is_unmapped(
    served: Served, regions: RegionTable, gpu: fake_cudart.Device
) -> None:
    """The fake refuses to unregister what is not mapped any more."""
    served.answers(request_in(served, regions, random(1, 4), to=4096))
    assert gpu.registered
    assert regions.forget([7]) == (7,)
    assert not gpu.registered
    assert gpu.calls["cudaHostUnregister"] == 1


def test_memory_stays_registered_while_a_request_has_it(
    served: Served, regions: RegionTable, gpu: fake_cudart.Device
) -> None:
    request = request_in(served, regions, random(1, 4), to=4096)
    served.answers(request)
    assert regions.forget([7]) == ()
    assert gpu.registered
    del request
    assert not gpu.registered
    assert regions.sweep() == (7,)


def test_a_table_that_is_dropped_leaves_nothing_registered(
    served: Served, segment: Segment, gpu: fake_cudart.Device
) -> None:
    table = RegionTable()
    table.define([segment.region])
    served.answers(request_in(served, table, random(1, 4)))
    assert gpu.registered
    del table
    assert not gpu.registered


def test_the_owner_of_memory_is_found_through_all_views() -> None:
    memory = MappedMemory(-1, 4096)
    array: Any = np.frombuffer(memoryview(memory)[8:], np.uint8)
    for view in (memory, memoryview(memory), array, array[4:], memoryview(array)[4:]):
        assert client_memory.owner(view) is memory
    assert client_memory.owner(np.frombuffer(memoryview(array), np.uint8)[1:]) is memory


def test_unload_unregisters(served: Served, regions: RegionTable, gpu: fake_cudart.Device) -> None:
    served.answers(request_in(served, regions, random(1, 4)))
    served.backend.unload()
    assert not gpu.registered
    assert regions.forget([7]) == (7,)
    assert gpu.calls["cudaHostUnregister"] == 1


def test_a_region_that_cannot_be_registered_is_staged_with_one_warning(
    served: Served,
    regions: RegionTable,
    segment: Segment,
    gpu: fake_cudart.Device,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpu.fail("cudaHostRegister", 801)
    array = random(2, 4)
    for _ in range(3):
        served.answers(request_in(served, regions, array, to=4096))
        found = np.frombuffer(segment.view[4096 : 4096 + array.nbytes], np.float32)
        np.testing.assert_array_equal(found.reshape(array.shape), 2 * array + 1)
    copies_in = [(host, size) for kind, host, size in gpu.copies if kind == "in"]
    assert all(gpu.reaches(*one) for one in copies_in[-3:]), "from the staging"
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "affine_0: a client's shared memory of 8192 bytes is not registered" in warnings[0]
    assert "CUDA error 801 (cudaErrorNotSupported)" in warnings[0]
    assert gpu.calls["cudaHostRegister"] == 1
    assert regions.forget([7]) == (7,)
    assert gpu.calls["cudaHostUnregister"] == 0


def test_what_is_registered_is_bounded(
    served: Served,
    regions: RegionTable,
    gpu: fake_cudart.Device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(client_memory, "REGISTERED_BYTES_MAX", 8191)
    array = random(1, 4)
    (answer,) = served.answers(request_in(served, regions, array))
    np.testing.assert_array_equal(answer["y"], 2 * array + 1)
    assert not gpu.registered
    assert "0 bytes are registered already, of REGISTERED_BYTES_MAX (8191)" in caplog.text


@contextmanager
def sparse_region(number: int, size: int) -> Iterator[tuple[int, Region]]:
    """As a stock client makes it: nothing of it is there before it is written."""
    key = segment_name("t", "client", os.getpid(), os.urandom(RANDOM_BYTES))
    descriptor = os.open(f"/dev/shm{key}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.truncate(descriptor, size)
        found = os.fstat(descriptor)
        yield descriptor, Region(number, key, found.st_dev, found.st_ino, size)
    finally:
        os.close(descriptor)
        os.unlink(f"/dev/shm{key}")


def test_a_sparse_segment_is_registered_when_its_owner_has_written_it(
    served: Served,
    gpu: fake_cudart.Device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(client_memory, "SPARSE_BYTES_MAX", 8192)
    table = RegionTable()
    with sparse_region(1, 8 << 30) as (descriptor, region):
        table.define([region])
        array = random(1, 4)
        (answer,) = served.answers(request_in(served, table, array, region=1))
        np.testing.assert_array_equal(answer["y"], 2 * array + 1)
        assert not gpu.registered
        assert os.fstat(descriptor).st_blocks * 512 < 1 << 20
        assert "are not written, and 0 such bytes are registered already" in caplog.text
        table.forget([1])
    with sparse_region(2, 1 << 20) as (descriptor, region):
        table.define([region])
        served.answers(request_in(served, table, random(1, 4), region=2))
        assert not gpu.registered
        os.posix_fallocate(descriptor, 0, (1 << 20) - 8192)
        served.answers(request_in(served, table, random(1, 4), region=2))
        assert [size for size, _ in gpu.registered.values()] == [1 << 20]
    assert caplog.text.count("is not registered with CUDA") == 1


def test_what_is_sparse_counts_together_until_it_is_unmapped(
    served: Served, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_memory, "SPARSE_BYTES_MAX", 3 * 8192)
    table = RegionTable()
    with (
        sparse_region(1, 3 * 8192) as (_, first),
        sparse_region(2, 3 * 8192) as (_, second),
    ):
        table.define([first, second])
        served.answers(request_in(served, table, random(1, 4), region=1))
        served.answers(request_in(served, table, random(1, 4), region=2))
        assert len(gpu.registered) == 1
        table.forget([1])
        served.answers(request_in(served, table, random(1, 4), region=2))
        assert len(gpu.registered) == 1


def test_memory_whose_mapping_is_closed_is_not_registered_any_more(
    served: Served, regions: RegionTable, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether it is sparse."""
    monkeypatch.setattr(client_memory, "SPARSE_BYTES_MAX", 0)
    request = request_in(served, regions, random(1, 4))
    regions.forget([7])
    served.answers(request)
    assert not gpu.registered


def test_what_is_forgotten_makes_room(
    served: Served, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, of each as much as may be registered; what was refused takes nothing."""
    monkeypatch.setattr(client_memory, "REGISTERED_BYTES_MAX", 8192)
    table = RegionTable()
    for number, size in enumerate((8192, 4096, 16384, 8192), 1):
        key = segment_name("t", "client", os.getpid(), os.urandom(RANDOM_BYTES))
        with Segment.create(key, size, region_id=number) as own:
            table.define([own.region])
            served.answers(request_in(served, table, random(1, 4), region=number))
            is_small = size <= 8192
            assert [size for size, _ in gpu.registered.values()] == [size] * is_small
            assert table.forget([number]) == (number,)
            assert not gpu.registered


def test_what_is_registered_counts_together(
    served: Served, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_memory, "REGISTERED_BYTES_MAX", 12288)
    keys = [segment_name("t", "client", os.getpid(), os.urandom(RANDOM_BYTES)) for _ in range(3)]
    segments = [Segment.create(key, 8192, region_id=n) for n, key in enumerate(keys[:2], 1)]
    segments.append(Segment.create(keys[2], 4096, region_id=3))
    table = RegionTable()
    table.define([one.region for one in segments])
    for number in (1, 2, 3):
        served.answers(request_in(served, table, random(1, 4), region=number))
    assert sorted(size for size, _ in gpu.registered.values()) == [4096, 8192]
    table.forget([1, 2, 3])
    assert not gpu.registered
    for one in segments:
        one.close()


def test_an_error_of_unregistering_is_told_and_harms_nobody(
    served: Served,
    regions: RegionTable,
    gpu: fake_cudart.Device,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.answers(request_in(served, regions, random(1, 4)))
    gpu.fail("cudaHostUnregister", 713)
    assert regions.forget([7]) == (7,)
    assert "unregistering shared memory: CUDA error 713" in caplog.text
    served.ask({"x": random(1, 4)})


def test_an_error_of_unregistering_at_the_unload_is_told(
    served: Served,
    regions: RegionTable,
    gpu: fake_cudart.Device,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.answers(request_in(served, regions, random(1, 4)))
    gpu.fail("cudaHostUnregister", 713)
    served.backend.unload()
    assert "unregistering shared memory: CUDA error 713" in caplog.text
    assert not gpu.streams, "and all else is given back"


def test_memory_that_may_only_be_read_is_registered_so(
    served: Served, segment: Segment, gpu: fake_cudart.Device
) -> None:
    segment.view[:ROW] = random(1, 4).tobytes()
    with Mappings(writable=False) as mappings:
        mappings.define([segment.region])
        request = served.request({"x": random(1, 4)})
        request.inputs["x"].buffer = mappings.view(7, 0, ROW)
        served.answers(request)
        assert gpu.registered
        assert gpu.read_only == set(gpu.registered)


def test_results_of_two_clients_whose_memory_is_adjacent_are_two_copies(
    served: Served, gpu: fake_cudart.Device
) -> None:
    """One copy may not reach from one registration into the next."""
    keys = [segment_name("t", "client", os.getpid(), os.urandom(RANDOM_BYTES)) for _ in range(8)]
    segments = [Segment.create(key, 4096, region_id=n) for n, key in enumerate(keys, 1)]
    table = RegionTable()
    table.define([segment.region for segment in segments])
    spans = {
        n: np.frombuffer(table.writable(n, 0, 4096), np.uint8).ctypes.data for n in range(1, 9)
    }
    pairs = [(a, b) for a, at in spans.items() for b, to in spans.items() if at + 4096 == to]
    assert pairs, "the kernel maps one below the other"
    low, high = pairs[0]
    before = len(gpu.copies)
    last, first = 4096 - ROW, 0
    one = request_in(served, table, random(1, 4), at=0, to=last, region=low)
    two = request_in(served, table, random(1, 4), at=256, to=first, region=high)
    served.answers(one, two)
    assert [kind for kind, _, _ in gpu.copies[before:]] == ["in", "in", "out", "out"]
    for segment in segments:
        segment.close()


# --- Any batch -----------------------------------------------------------------------------------

CANARY = 0xC5
ROWS_MAX = 8
REGION_BYTES = 1 << 16
wishes = st.tuples(
    st.integers(1, 4),
    st.sampled_from(["message", "region"]),
    st.sampled_from(["nowhere", "exact", "larger", "too small"]),
    st.integers(0, 70),
)
batches = st.lists(wishes, min_size=1, max_size=5).filter(
    lambda batch: sum(rows for rows, *_ in batch) <= ROWS_MAX
)


class Shared(NamedTuple):
    served: Served
    regions: RegionTable
    segment: Segment


@pytest.fixture(scope="module", params=["registered", "not registered", "graphs"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    device = fake_cudart.reset()
    if request.param == "not registered":
        device.fail("cudaHostRegister", 801)
    bounds = {"batch_size": 1, "input": {}}
    graph = {"batch_size": ROWS_MAX, "input": {}, "graph_lower_bound": bounds}
    cuda = {"graphs": True, "graph_spec": [graph]} if request.param == "graphs" else {}
    folder = put_plan(
        engines.write_affine(tmp_path_factory.mktemp("engines") / "affine"),
        [{"x": [[1, 4], [2, 4], [ROWS_MAX, 4]]}],
    )
    key = segment_name("t", "client", os.getpid(), os.urandom(RANDOM_BYTES))
    with Segment.create(key, REGION_BYTES, region_id=7) as segment:
        table = RegionTable()
        table.define([segment.region])
        config = {"max_batch_size": ROWS_MAX, "optimization": {"cuda": cuda}}
        yield Shared(load(folder, config), table, segment)
    device.close()


@given(st.lists(batches, min_size=1, max_size=3), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_every_byte_comes_from_its_request_and_goes_to_its_place(
    shared: Shared, story: list[list[tuple[int, str, str, int]]], seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    memory = np.frombuffer(shared.segment.view, np.uint8)
    for batch in story:
        memory[:] = CANARY
        want = memory.copy()
        requests, arrays, at = [], [], 0
        for rows, source, place, gap in batch:
            array = numbers.standard_normal((rows, 4)).astype(np.float32)
            size = array.nbytes
            request = shared.served.request({"x": array})
            if source == "region":
                at += gap
                memory[at : at + size] = want[at : at + size] = array.view(np.uint8).ravel()
                request.inputs["x"].buffer = shared.regions.readable(7, at, size)
                at += size
            if place != "nowhere":
                at += gap
                room = size + {"exact": 0, "larger": 5, "too small": -1}[place]
                target = shared.regions.writable(7, at, room)
                request.places["y"] = np.frombuffer(target, np.uint8)
                if place != "too small":
                    result = (2 * array + 1).view(np.uint8).ravel()
                    want[at : at + size] = result
                at += room
            requests.append(request)
            arrays.append(array)
        for array, answer in zip(arrays, shared.served.answers(*requests), strict=True):
            np.testing.assert_array_equal(answer["y"], 2 * array + 1)
        np.testing.assert_array_equal(memory, want)

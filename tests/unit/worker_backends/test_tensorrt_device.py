"""Clients' GPU memory and TensorRT, over the fakes and through the worker's own code: read and
written where it is, or copied within the GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from naiad.protocol import messages as m
from naiad.protocol.errors import ModelError, RequestError
from naiad.shm.cuda.errors import RUNTIME_MODULE
from naiad.shm.cuda.key import cuda_region
from naiad.worker import device_regions
from naiad.worker.backends.base import DeviceMemory, DeviceSpan, ModelRequest
from naiad.worker.backends.tensorrt.backend import TensorRTBackend
from naiad.worker.device_regions import DeviceRegions
from naiad.worker.execution import ExecutedBatch
from naiad.worker.regions import RegionTable
from support import engines, fake_cuda_ipc
from support.backend_requests import PackedInput
from support.engines import on_gpu, put_plan
from support.waiting import wait_until
from support.worker_parts import batch_of, execution_with, inline, request_of

SIZE = 4096
ROWS_MAX = 8
PLACE = m.Place.REGION


def importer(name: str) -> Any:
    return fake_cuda_ipc if name == RUNTIME_MODULE else engines.importer(name)


class Bench:
    """A worker with y = 2x + 1, and a client's region 1 on its GPU."""

    def __init__(
        self, folder: Path, profiles: Any = engines.AFFINE, *, rows_max: int = ROWS_MAX
    ) -> None:
        self.gpu = fake_cuda_ipc.reset()
        directory = put_plan(engines.write_affine(folder / "affine"), profiles)
        instance = on_gpu(directory, {"max_batch_size": rows_max})
        backend = TensorRTBackend(importer)
        config = backend.load(instance)
        self.execution = execution_with(backend, instance, config)
        self.numbers = np.random.default_rng(7)
        self.handle = b""
        self.table = RegionTable()
        self.share()

    def close(self) -> None:
        self.execution.backend.unload()
        self.table.forget([1])
        self.gpu.close()

    def share(self) -> None:
        """A region of random numbers, anew."""
        content = self.numbers.standard_normal(SIZE // 4).astype(np.float32)
        self.handle = fake_cuda_ipc.device_of_another(content.tobytes())
        self.table = RegionTable(DeviceRegions(fake_cuda_ipc.loaded))
        self.table.define([cuda_region(self.handle, SIZE, 0, "theirs", region_id=1)])

    def floats(self, offset: int, rows: int) -> Any:
        content = fake_cuda_ipc.content_of_another(self.handle)
        return np.frombuffer(content, np.float32, 4 * rows, offset).reshape(rows, 4)

    def run(self, *requests: m.BatchRequest, frames: Sequence[bytes] = ()) -> ExecutedBatch:
        return self.execution.run(batch_of(requests, frames, self.table), set())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def placed(offset: int, rows: int, **more: Any) -> m.BatchRequest:
    return request_of(m.Tensor("x", "FP32", (rows, 4), PLACE, 1, offset, 16 * rows), **more)


def wanted(offset: int, size: int) -> tuple[m.OutputRequest, ...]:
    return (m.OutputRequest("y", PLACE, 1, offset, size),)


def copies(bench: Bench) -> int:
    return bench.gpu.calls["cudaMemcpyAsync"] + bench.gpu.calls["cudaMemcpy"]


def test_a_single_request_is_executed_where_its_memory_is(bench: Bench) -> None:
    source = bench.floats(256, 3).copy()
    before = copies(bench)
    (result,) = bench.run(placed(256, 3, outputs=wanted(1024, 64))).results
    assert result.error is None
    assert result.outputs == (m.Tensor("y", "FP32", (3, 4), PLACE, 1, 1024, 48),)
    np.testing.assert_array_equal(bench.floats(1024, 3), 2 * source + 1)
    assert copies(bench) == before


def test_requests_of_a_batch_are_copied_within_the_gpu(bench: Bench) -> None:
    bench.run(placed(0, 1))
    host_copies = len(bench.gpu.copies)
    sources = [bench.floats(offset, 2).copy() for offset in (0, 512)]
    first, second = bench.run(
        placed(0, 2, outputs=wanted(2048, 32)), placed(512, 2, outputs=wanted(3000, 32))
    ).results
    assert (first.error, second.error) == (None, None)
    np.testing.assert_array_equal(bench.floats(2048, 2), 2 * sources[0] + 1)
    np.testing.assert_array_equal(bench.floats(3000, 2), 2 * sources[1] + 1)
    assert len(bench.gpu.copies) == host_copies
    assert bench.gpu.calls["cudaMemcpy"] == 0


@pytest.mark.parametrize(("source", "target"), [(4, 1024), (256, 1028), (12, 1036)])
def test_what_is_not_aligned_is_copied(bench: Bench, source: int, target: int) -> None:
    numbers = bench.floats(source, 2).copy()
    before = copies(bench)
    (result,) = bench.run(placed(source, 2, outputs=wanted(target, 32))).results
    assert result.error is None
    np.testing.assert_array_equal(bench.floats(target, 2), 2 * numbers + 1)
    assert copies(bench) - before == bool(source % 256) + bool(target % 256)


@pytest.mark.parametrize("target", [256, 512])
def test_an_output_over_its_own_input_is_right_all_the_same(bench: Bench, target: int) -> None:
    source = bench.floats(256, 20 if target == 512 else 2)[:ROWS_MAX].copy()
    rows = len(source)
    (result,) = bench.run(placed(256, rows, outputs=wanted(target, 16 * rows))).results
    assert result.error is None
    np.testing.assert_array_equal(bench.floats(target, rows), 2 * source + 1)
    before = copies(bench)
    bench.run(placed(256, 1, outputs=wanted(256, 16)))
    assert copies(bench) == before + 1, "read in place, and written by a copy"


def test_a_place_that_is_too_small_stays_as_it_is(bench: Bench) -> None:
    before = bench.floats(1024, 4).copy()
    (result,) = bench.run(placed(256, 2, outputs=wanted(1024, 31))).results
    assert result.error is not None
    assert "output 'y' (31 bytes) should be at least 32 bytes" in result.error[1]
    np.testing.assert_array_equal(bench.floats(1024, 4), before)


@pytest.mark.parametrize("rows", range(1, ROWS_MAX + 1))
def test_an_output_needs_room_for_its_own_shape_and_no_more(bench: Bench, rows: int) -> None:
    """Whatever larger ones the profile admits."""
    source, around = bench.floats(256, rows).copy(), bench.floats(1024, 2 * ROWS_MAX).copy()
    before = copies(bench)
    (result,) = bench.run(placed(256, rows, outputs=wanted(1024, 16 * rows))).results
    assert result.error is None
    assert copies(bench) == before
    np.testing.assert_array_equal(bench.floats(1024, rows), 2 * source + 1)
    np.testing.assert_array_equal(bench.floats(1024, 2 * ROWS_MAX)[rows:], around[rows:])


def test_an_output_beside_its_input_is_written_where_it_is(tmp_path: Path) -> None:
    """It ends where the input begins."""
    bench = Bench(tmp_path, [{"x": [[1, 4], [2, 4], [16, 4]]}], rows_max=16)
    source = bench.floats(256, 16).copy()
    before = copies(bench)
    (result,) = bench.run(placed(256, 16, outputs=wanted(0, 256))).results
    assert result.error is None
    assert copies(bench) == before
    np.testing.assert_array_equal(bench.floats(0, 16), 2 * source + 1)
    np.testing.assert_array_equal(bench.floats(256, 16), source)
    bench.close()


def direct(bench: Bench, source: tuple[int, int], place: tuple[int, int] | None) -> Any:
    """A request of one row for the backend itself; (offset, bytes) of what lies in the region."""
    opened = bench.table.device.span(1, 0, 4)
    inputs = {"x": DeviceSpan(opened.address + source[0], source[1])}
    places = {} if place is None else {"y": DeviceSpan(opened.address + place[0], place[1])}
    tensors: Any = {"x": PackedInput("x", "FP32", (1, 4), memoryview(b""))}
    return ModelRequest("", tensors, ("y",), {}, device=DeviceMemory(inputs, places))


@pytest.mark.parametrize("size", [12, 20])
@pytest.mark.parametrize("count", [1, 2])
def test_gpu_memory_that_does_not_fit_the_shape_is_refused(
    bench: Bench, size: int, count: int
) -> None:
    good, bad = direct(bench, (0, 16), (1024, 16)), direct(bench, (256, size), None)
    with pytest.raises(RequestError, match=rf"expected 16 bytes .* \[1, 4\], got {size}"):
        bench.execution.backend.execute([good, bad][-count:])
    before = bench.floats(1024, 1).copy()
    bench.gpu.settle()
    np.testing.assert_array_equal(bench.floats(1024, 1), before)


@pytest.mark.parametrize(("source", "place"), [(4, None), (256, 1028)])
def test_a_copy_within_the_gpu_that_fails_fails_its_batch(
    bench: Bench, source: int, place: int | None
) -> None:
    """In, and out."""
    request = direct(bench, (source, 16), None if place is None else (place, 16))
    bench.gpu.fail("cudaMemcpyAsync", 801)
    with pytest.raises(ModelError, match="copying 16 bytes within GPU memory: CUDA error 801"):
        bench.execution.backend.execute([request])
    (response,) = bench.execution.backend.execute([request])
    assert not isinstance(response, Exception)


def test_memory_of_another_gpu_is_copied(bench: Bench) -> None:
    """An engine reads and writes its own GPU's."""
    source = bench.floats(0, 1).copy()
    request = direct(bench, (0, 16), (1024, 16))
    for found in (request.device.inputs, request.device.places):
        found.update({name: span._replace(device=1) for name, span in found.items()})
    before = copies(bench)
    bench.execution.backend.execute([request])
    assert copies(bench) == before + 2
    np.testing.assert_array_equal(bench.floats(1024, 1), 2 * source + 1)


def stuck(bench: Bench) -> Any:
    """The event of the region, recorded and not reached."""
    bench.run(placed(0, 1))
    event = bench.table.device._opened[1].event = fake_cuda_ipc.loaded().new_event(0)
    event.set_counts(1, 0)
    return event


@pytest.mark.parametrize("outputs", [(), wanted(1024, 16)])
def test_an_event_that_never_comes_costs_its_own_request_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outputs: Any
) -> None:
    monkeypatch.setattr(device_regions, "CLIENT_EVENT_SECONDS_MAX", 0.01)
    event = stuck(bench)
    tensor = inline("x", "FP32", (1, 4), 16)
    late = request_of(tensor, ident=2, outputs=outputs) if outputs else placed(256, 1)
    frame = np.ones(4, np.float32).tobytes()
    for _ in range(2):
        theirs, other = bench.run(late, request_of(tensor), frames=[frame]).results
        assert theirs.error is not None
        assert "region 'theirs': its event was not reached within 0.01 s" in theirs.error[1]
        assert other.error is None
    event.set_counts(1, 1)
    (result,) = bench.run(late, frames=[frame]).results
    assert result.error is None


@pytest.mark.parametrize("is_read", [True, False])
def test_a_batch_that_waits_for_its_client_is_not_begun_ahead(bench: Bench, is_read: bool) -> None:
    """Whether the memory is read or written."""
    event = stuck(bench)
    source = bench.floats(256, 1).copy()
    tensor, outputs = inline("x", "FP32", (1, 4), 16), wanted(1024, 16)
    request = placed(256, 1) if is_read else request_of(tensor, ident=2, outputs=outputs)
    late = batch_of([request], [source.tobytes()], bench.table)
    bench.execution.overlap(lambda: late, lambda _: True)
    (result,) = bench.run(request_of(tensor), frames=[bytes(16)]).results
    assert result.error is None
    assert bench.execution._ahead is None
    event.set_counts(1, 1)
    bench.run(request_of(tensor), frames=[bytes(16)])
    assert bench.execution._ahead is not None
    done = bench.execution.run(late, set())
    assert done.results[0].error is None
    found = np.frombuffer(done.frames[0], np.float32) if is_read else bench.floats(1024, 1)[0]
    np.testing.assert_array_equal(found, 2 * source[0] + 1)


def test_the_owners_event_is_waited_for(bench: Bench) -> None:
    bench.run(placed(0, 1, outputs=wanted(1024, 16)))
    event = fake_cuda_ipc.loaded().new_event(0)
    event.set_counts(1, 0)  # recorded, and not reached
    bench.table.device._opened[1].event = event
    for requests in (
        [placed(256, 1, outputs=wanted(1024, 16))],
        [placed(256, 1), placed(512, 1, outputs=wanted(1024, 16))],
    ):
        event.set_counts(1, 0)
        waited = bench.gpu.calls["cudaEventQuery"] + 3
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(bench.run, *requests)
            wait_until(partial(has_queried, bench, waited), "the worker waiting")
            assert not done.done()
            event.set_counts(1, 1)
            assert [one.error for one in done.result(30).results] == [None] * len(requests)


def has_queried(bench: Bench, times: int) -> bool:
    return bench.gpu.calls["cudaEventQuery"] > times


class Given(NamedTuple):
    rows: int
    on_device: bool
    place: str


given_requests = st.builds(
    Given, st.integers(1, 3), st.booleans(), st.sampled_from(["device", "odd", "none"])
)


@given(st.lists(given_requests, min_size=1, max_size=4))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_request_gets_its_own_rows_wherever_they_are(
    bench: Bench, batch: list[Given]
) -> None:
    while sum(one.rows for one in batch) > ROWS_MAX:
        batch.pop()
    bench.share()
    requests: list[m.BatchRequest] = []
    frames: list[bytes] = []
    sources: list[Any] = []
    for index, one in enumerate(batch):
        inside, target = 256 * index, 2048 + 256 * index + (4 if one.place == "odd" else 0)
        outputs = () if one.place == "none" else wanted(target, 200)
        if one.on_device:
            sources.append(bench.floats(inside, one.rows).copy())
            requests.append(placed(inside, one.rows, ident=index, outputs=outputs))
        else:
            numbers = bench.numbers.standard_normal((one.rows, 4)).astype(np.float32)
            sources.append(numbers)
            tensor = inline("x", "FP32", numbers.shape, numbers.nbytes, 0, len(frames))
            frames.append(numbers.tobytes())
            requests.append(request_of(tensor, ident=index, outputs=outputs))
    done = bench.run(*requests, frames=frames)
    for index, (one, result, source) in enumerate(zip(batch, done.results, sources, strict=True)):
        assert result.error is None
        (tensor,) = result.outputs
        if one.place == "none":
            content = done.frames[tensor.region][tensor.offset : tensor.offset + tensor.size]
            found = np.frombuffer(content, np.float32).reshape(-1, 4)
        else:
            found = bench.floats(2048 + 256 * index + (4 if one.place == "odd" else 0), one.rows)
        np.testing.assert_array_equal(found, 2 * source + 1)


def test_nothing_of_a_batch_that_is_over_keeps_a_region_open(bench: Bench) -> None:
    for requests in ([placed(256, 1)], [placed(256, 1), placed(512, 2, outputs=wanted(1024, 32))]):
        bench.run(*requests)
        bench.table.forget([1])
        assert fake_cuda_ipc.open_count(bench.handle) == 0
        bench.share()
    bad = placed(256, 1, outputs=wanted(1024, 3))
    bench.run(bad)
    bench.gpu.fail("cudaEventQuery", 1)
    bench.run(placed(256, 1))
    bench.table.forget([1])
    gc.collect()  # an error and the frames that it came through hold each other
    assert fake_cuda_ipc.open_count(bench.handle) == 0


def test_a_batch_that_is_launched_ahead_writes_in_its_turn(bench: Bench) -> None:
    """The next batch is staged, and begun, while the first is executed."""
    sources = [bench.floats(offset, 2).copy() for offset in (0, 512)]
    first = batch_of([placed(0, 2, ident=1, outputs=wanted(2048, 32))], [], bench.table)
    second = batch_of([placed(512, 2, ident=2, outputs=wanted(3072, 32))], [], bench.table)
    second = second._replace(id=6)
    before = bench.floats(3072, 2).copy()
    waiting = [second]
    bench.execution.overlap(lambda: waiting.pop() if waiting else None, lambda _: True)
    done = bench.execution.run(first, set())
    assert done.results[0].error is None
    assert not waiting, "it was staged"
    np.testing.assert_array_equal(bench.floats(2048, 2), 2 * sources[0] + 1)
    np.testing.assert_array_equal(bench.floats(3072, 2), before)
    done = bench.execution.run(second, set())
    assert done.results[0].error is None
    np.testing.assert_array_equal(bench.floats(3072, 2), 2 * sources[1] + 1)

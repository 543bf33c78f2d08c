"""naiad's own backend on the GPU, with a kernel as its engine: results, rates, gaps, latency."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final

from gpu_checks import in_place, kernel_trt, rows
from gpu_checks.backend_requests import ELEMENT_BYTES, Batch, loaded, with_kernel
from gpu_checks.gpu import Gpu, host_microseconds, segment
from gpu_checks.host_memory import RATE_SHARE_MIN
from gpu_checks.order import OVERLAP_MIN, gaps, read_stamps
from gpu_checks.rows import Row
from gpu_checks.segments import SHM
from gpu_checks.steps import Options
from naiad.shm.mapped_memory import MappedMemory
from naiad.worker.backends.base import ModelRequest
from naiad.worker.backends.tensorrt.backend import TensorRTBackend

WIDTH: Final = 1024
BATCHES: Final = ([1], [3, 1, 4], [1] * 16, [32])
ROWS_MAX: Final = 32
GRAPHS: Final = {"optimization": {"cuda": {"graphs": True}}}
REQUESTS: Final = 16
REQUEST_BYTES: Final = (8 << 20, 2 << 20, 1 << 20)
"""Of a large batch's request; the first of which there is room for in /dev/shm."""
ROUNDS: Final = 5
PIPELINED: Final = 12
GAP_BATCHES: Final = 100
LATENCY_CALLS: Final = 300
BUSY_US: Final = 200.0


def prove(options: Options) -> Iterator[Row]:
    yield from _results()
    yield from in_place.prove()
    yield from _small()
    yield from _graphed()
    yield from _large()


def _results() -> Iterator[Row]:
    plan = kernel_trt.plan(WIDTH, ROWS_MAX)
    size = 2 * ROWS_MAX * WIDTH * ELEMENT_BYTES
    with loaded(plan, with_kernel) as (backend, _), segment(size, MappedMemory) as memory:
        for counts in BATCHES:
            batch = Batch(memory, counts, WIDTH, seed=len(counts))
            fault = batch.fault(backend.execute(batch.requests))
            what = f"rows {counts if len(counts) < 4 else f'{len(counts)} x 1'}: 2x + 1, in place"
            yield rows.holds(what, not fault, "equal" if not fault else "not so", reason=fault)
            batch.clear()


def _small() -> Iterator[Row]:
    """Requests of 4 KiB, whose kernel takes BUSY_US."""
    plan = kernel_trt.plan(WIDTH, ROWS_MAX, busy_us=BUSY_US, stamps=True)
    size = 2 * WIDTH * ELEMENT_BYTES
    with (
        loaded(plan, with_kernel) as (backend, _),
        segment(size, MappedMemory) as first,
        segment(size, MappedMemory) as second,
    ):
        engine = kernel_trt.engines[-1]
        pair = [Batch(memory, [1], WIDTH).requests for memory in (first, second)]
        calls = []
        for _ in range(LATENCY_CALLS):
            begin = perf_counter()
            backend.execute(pair[0])
            calls.append(host_microseconds(begin))
        over = median(calls) - BUSY_US
        note = f"4 KiB, a kernel of {BUSY_US:.0f} us, p50"
        yield rows.told("the backend alone, over the bare kernel", over, "us", note)
        for name, run in (("one after the other", _in_turn), ("the next staged", _staged)):
            engine.forget_stamps()
            run(backend, [pair[number % 2] for number in range(GAP_BATCHES)])
            found = gaps(read_stamps(engine.gpu, engine.gpu.stream(), engine.stamps))
            yield rows.told(f"the launch gap of two batches, {name}", median(found), "us")


def _in_turn(backend: TensorRTBackend, batches: Sequence[Sequence[ModelRequest]]) -> None:
    for batch in batches:
        backend.execute(batch)


def _staged(backend: TensorRTBackend, batches: Sequence[Sequence[ModelRequest]]) -> None:
    """As the worker does it: while one batch is executed, the next is brought to the device."""
    waiting = list(batches[1:])

    def meanwhile() -> None:
        if waiting and not has_staged[0]:
            backend.stage(waiting[0])
            has_staged[0] = True

    has_staged = [False]
    backend.overlap(meanwhile, lambda: True)
    for batch in batches:
        backend.execute(batch)
        has_staged[0] = False
        del waiting[:1]


def _graphed() -> Iterator[Row]:
    """Batches that were captured: launched again, not given to the stream again."""
    plan = kernel_trt.plan(WIDTH, ROWS_MAX, stamps=True)
    size = 2 * WIDTH * ELEMENT_BYTES
    for name, config in (("without graphs", {}), ("as a graph", GRAPHS)):
        with (
            loaded(plan, with_kernel, {"max_batch_size": ROWS_MAX, **config}) as (backend, _),
            segment(size, MappedMemory) as memory,
        ):
            engine = kernel_trt.engines[-1]
            batch = Batch(memory, [1], WIDTH)
            engine.forget_stamps()
            starts = engine.starts
            run = partial(backend.execute, batch.requests)
            took = [_ms(run) for _ in range(LATENCY_CALLS)]
            if config:
                ran = len(read_stamps(engine.gpu, engine.gpu.stream(), engine.stamps))
                begun = engine.starts - starts
                fault = _fault_after(backend, batch)
                is_so = ran == LATENCY_CALLS and not begun and not fault
                measured = f"{ran} executions, {begun} starts"
                bar = f"{LATENCY_CALLS}, 0"
                reason = fault or "there is no graph for one row"
                what = "graphs serve their batches"
                yield rows.holds(what, is_so, measured, bar=bar, reason=reason)
            yield rows.told(f"a batch of one row, {name}", median(took) * 1000, "us", "p50")


def _large() -> Iterator[Row]:
    """Large batches: the rate of their copies, and their copies beside executions."""
    request = _request_bytes()
    if not request:
        yield rows.skipped("large batches", f"too little room in {SHM}: give the container more")
        return
    size = 2 * REQUESTS * request
    width = request // ELEMENT_BYTES
    plan = kernel_trt.plan(width, REQUESTS)
    with (
        loaded(plan, with_kernel) as (backend, _),
        segment(size, MappedMemory) as first,
        segment(size, MappedMemory) as second,
    ):
        engine = kernel_trt.engines[-1]
        pair = [Batch(memory, [1] * REQUESTS, width) for memory in (first, second)]
        for batch in pair:  # the first touch registers the memory
            backend.execute(batch.requests)
        bare_ms = _bare_ms(engine.gpu, size // 2)
        took = median(_ms(lambda: backend.execute(pair[0].requests)) for _ in range(ROUNDS))
        kernel = _kernel_ms(engine, width * REQUESTS)
        note = f"{took:.2f} ms for {REQUESTS} x {request >> 20} MiB in and out, {bare_ms:.2f} bare"
        what = "a batch's copies, of bare pinned ones"
        yield rows.at_least(what, bare_ms / (took - kernel), RATE_SHARE_MIN, "x", note)
        engine.busy_us = took * 1000
        many = [pair[number % 2].requests for number in range(PIPELINED)]
        in_turn = median(_ms(lambda: _in_turn(backend, many)) for _ in range(ROUNDS))
        staged = median(_ms(lambda: _staged(backend, many)) for _ in range(ROUNDS))
        note = f"{in_turn:.1f} and {staged:.1f} ms for {PIPELINED} batches"
        what = "batches one after the other over staged ones, equal halves"
        yield rows.at_least(what, in_turn / staged, OVERLAP_MIN, "x", note)
        fault = next(filter(None, (_fault_after(backend, batch) for batch in pair)), "")
        yield rows.holds("and the results are right", not fault, fault or "equal")


def _request_bytes() -> int:
    status = os.statvfs(SHM)
    room = status.f_bavail * status.f_frsize
    return next((size for size in REQUEST_BYTES if 5 * REQUESTS * size < room), 0)


def _fault_after(backend: TensorRTBackend, batch: Batch) -> str:
    batch.clear()
    return batch.fault(backend.execute(batch.requests))


def _ms(work: Callable[[], Any]) -> float:
    begin = perf_counter()
    work()
    return host_microseconds(begin) / 1000


def _bare_ms(gpu: Gpu, size: int) -> float:
    """The same bytes in and out, in one piece each way, by pinned memory."""
    stream = gpu.stream()
    device = gpu.malloc(size)
    found = []
    with gpu.pinned(size) as host:
        for _ in range(ROUNDS):
            with gpu.timed(stream) as took:
                gpu.to_device(device, host, size, stream)
                gpu.to_host(host, device, size, stream)
            found.append(took[0])
    gpu.free(device)
    return median(found)


def _kernel_ms(engine: kernel_trt.ICudaEngine, count: int) -> float:
    stream = engine.gpu.stream()
    x, y = (engine.gpu.malloc(count * ELEMENT_BYTES) for _ in range(2))
    found = []
    for _ in range(ROUNDS):
        with engine.gpu.timed(stream) as took:
            engine.kernels.affine(stream, x, y, count)
        found.append(took[0])
    engine.gpu.free(x, y)
    return median(found)

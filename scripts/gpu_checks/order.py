"""What runs in which order and what at once: streams, events, copies beside kernels, graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np

from gpu_checks import rows
from gpu_checks.gpu import Gpu, floats_at, host_microseconds, segment
from gpu_checks.kernels import STAMPS_BYTES, STAMPS_MAX, Kernels
from gpu_checks.rows import Row
from gpu_checks.steps import Options

BUSY_US: Final = 20_000
SIDE_BY_SIDE_MAX: Final = 1.3
"""Two kernels of one multiprocessor each, on two streams, over one of them."""
COUNT: Final = 1 << 16
OVERLAP_BYTES: Final = 32 << 20
OVERLAP_BATCHES: Final = 16
OVERLAP_ROUNDS: Final = 5
OVERLAP_MIN: Final = 1.6
GRAPH_KERNELS: Final = 20
GRAPH_ROUNDS: Final = 200
GAP_LAUNCHES: Final = 200


def streams(options: Options) -> Iterator[Row]:
    gpu = Gpu()
    kernels = Kernels(gpu)
    first, second = gpu.stream(), gpu.stream()
    kernels.load(first)
    one = _seconds(gpu, (first,), lambda stream: kernels.busy(stream, BUSY_US))
    both = _seconds(gpu, (first, second), lambda stream: kernels.busy(stream, BUSY_US))
    yield rows.at_most("two kernels on two streams, over one", both / one, SIDE_BY_SIDE_MAX, "x")
    for waits in (False, True):
        yield _ordered(gpu, kernels, first, second, waits=waits)
    least, greatest = gpu.call("cudaDeviceGetStreamPriorityRange")
    for priority in {least, greatest}:
        flags = gpu.runtime.cudaStreamNonBlocking
        made = gpu.call("cudaStreamCreateWithPriority", flags, priority)
        gpu.call("cudaStreamDestroy", made)
    yield rows.holds("streams of the least and greatest priority", True, f"{least}, {greatest}")
    yield from _gaps(gpu, kernels, first)


def _seconds(gpu: Gpu, own: tuple[Any, ...], work: Callable[[Any], None]) -> float:
    begin = perf_counter()
    for stream in own:
        work(stream)
    for stream in own:
        gpu.finish(stream)
    return perf_counter() - begin


def _ordered(gpu: Gpu, kernels: Kernels, first: Any, second: Any, *, waits: bool) -> Row:
    """One stream computes late what the other copies out: with an event, what was computed."""
    size = 4 * COUNT
    x, y = gpu.malloc(size), gpu.malloc(size)
    event = gpu.event()
    with gpu.pinned(size) as host:
        numbers = floats_at(host, COUNT)
        numbers[:] = 3
        for device in (x, y):
            gpu.to_device(device, host, size, first)
        gpu.finish(first)
        kernels.busy(first, BUSY_US)
        kernels.affine(first, x, y, COUNT)
        gpu.record(event, first)
        if waits:
            gpu.wait_for(second, event)
        gpu.to_host(host, y, size, second)
        gpu.finish(second)
        seen = sorted({float(number) for number in numbers})
        gpu.finish(first)
    gpu.call("cudaEventDestroy", event)
    gpu.free(x, y)
    expected = [7.0] if waits else [3.0]
    what = "a stream that waits for an event of another sees what that computed"
    if not waits:
        what = "a stream that does not wait sees what was there before (control)"
    return rows.holds(
        what, seen == expected, f"{seen[:4]}", bar=f"{expected}", reason="wrong order"
    )


def _gaps(gpu: Gpu, kernels: Kernels, stream: Any) -> Iterator[Row]:
    """Between two kernels that were both given in time, and with a look at an event in between."""
    stamps = gpu.malloc(STAMPS_BYTES)
    for name, looks in (("given ahead", False), ("given when the one before is done", True)):
        gpu.call("cudaMemsetAsync", stamps, 0, STAMPS_BYTES, stream)
        for _ in range(GAP_LAUNCHES):
            kernels.affine(stream, 0, 0, 0, busy_us=100, stamps=stamps)
            if looks:
                gpu.finish(stream)
        gpu.finish(stream)
        found = gaps(read_stamps(gpu, stream, stamps))
        yield rows.told(f"the launch gap of bare kernels, {name}", median(found), "us")
    gpu.free(stamps)


def read_stamps(gpu: Gpu, stream: Any, stamps: int) -> list[tuple[int, int]]:
    """(begin, end) of each execution of `affine`, in nanoseconds of the device, in order."""
    with gpu.pinned(STAMPS_BYTES) as host:
        gpu.to_host(host, stamps, STAMPS_BYTES, stream)
        gpu.finish(stream)
        numbers = list((ctypes.c_uint64 * (STAMPS_BYTES // 8)).from_address(host))
    count = min(numbers[0], STAMPS_MAX)
    return sorted(zip(numbers[1 : 1 + 2 * count : 2], numbers[2 : 2 + 2 * count : 2], strict=True))


def gaps(stamps: list[tuple[int, int]]) -> list[float]:
    """Microseconds between the end of one execution and the beginning of the next."""
    return [(begin - end) / 1000 for (_, end), (begin, _) in pairwise(stamps)]


def overlap(options: Options) -> Iterator[Row]:
    """Batches whose copy in takes as long as their execution, in one stream and in two."""
    gpu = Gpu()
    kernels = Kernels(gpu)
    copies, executions = gpu.stream(), gpu.stream()
    buffers = [gpu.malloc(OVERLAP_BYTES) for _ in range(2)]
    with segment(OVERLAP_BYTES) as ours, gpu.registered(ours.address, OVERLAP_BYTES):
        ctypes.memset(ours.address, 1, OVERLAP_BYTES)
        kernels.busy(executions, 10)
        halves = []
        for _ in range(OVERLAP_ROUNDS):
            with gpu.timed(copies) as took:
                gpu.to_device(buffers[0], ours.address, OVERLAP_BYTES, copies)
            halves.append(took[0] * 1000)
        half = median(halves)
        yield rows.told("one copy in of 32 MiB, and one kernel", half, "us")

        def batches(into: tuple[Any, Any]) -> float:
            return _batches(gpu, kernels, into, buffers, ours.address, half)

        found = [
            batches((executions, executions)) / batches((copies, executions))
            for _ in range(OVERLAP_ROUNDS)
        ]
        note = (
            f"{OVERLAP_BATCHES} batches, {2 * OVERLAP_BATCHES / (OVERLAP_BATCHES + 1):.2f} at best"
        )
        yield rows.at_least(
            "one stream over two, equal halves", median(found), OVERLAP_MIN, "x", note
        )
    gpu.free(*buffers)


def _batches(
    gpu: Gpu, kernels: Kernels, into: tuple[Any, Any], buffers: list[int], host: int, half_us: float
) -> float:
    """Seconds for all batches, each with a buffer that the last but one is done with."""
    copies, executions = into
    copied = [gpu.event() for _ in buffers]
    done = [gpu.event() for _ in buffers]
    begin = perf_counter()
    for number in range(OVERLAP_BATCHES):
        place = number % len(buffers)
        if number >= len(buffers):
            gpu.wait_for(copies, done[place])
        gpu.to_device(buffers[place], host, OVERLAP_BYTES, copies)
        gpu.record(copied[place], copies)
        gpu.wait_for(executions, copied[place])
        kernels.busy(executions, half_us)
        gpu.record(done[place], executions)
    gpu.finish(executions)
    took = perf_counter() - begin
    for event in (*copied, *done):
        gpu.call("cudaEventDestroy", event)
    return took


def graphs(options: Options) -> Iterator[Row]:
    gpu = Gpu()
    kernels = Kernels(gpu)
    stream = gpu.stream()
    size = 4 * COUNT
    x, y = gpu.malloc(size), gpu.malloc(size)
    with gpu.pinned(size) as host, gpu.pinned(size) as back:
        numbers, results = floats_at(host, COUNT), floats_at(back, COUNT)
        numbers[:] = np.arange(COUNT)

        def work() -> None:
            gpu.to_device(x, host, size, stream)
            for _ in range(GRAPH_KERNELS):
                kernels.affine(stream, x, y, COUNT)
            gpu.to_host(back, y, size, stream)

        work()  # loads the kernel, which a capture could not
        gpu.finish(stream)
        results[:] = 0
        graph = _captured(gpu, stream, work)
        is_untouched = not results.any()
        yield rows.holds("nothing runs while it is captured", is_untouched, f"{is_untouched}")
        for round_number in range(2):
            numbers += round_number  # the graph reads what is there when it is launched
            gpu.call("cudaGraphLaunch", graph, stream)
            gpu.finish(stream)
            equal = bool((results == 2 * numbers + 1).all())
            yield rows.holds(f"launch {round_number + 1} gives 2x + 1", equal, f"{equal}")
        launched = _median_us(gpu, stream, work)
        replayed = _median_us(gpu, stream, lambda: gpu.call("cudaGraphLaunch", graph, stream))
        note = f"{replayed:.0f} instead of {launched:.0f} us for {GRAPH_KERNELS} kernels, 2 copies"
        yield rows.at_least("launching each over replay", launched / replayed, 1, "x", note)
        gpu.call("cudaGraphExecDestroy", graph)
    gpu.free(x, y)


def _captured(gpu: Gpu, stream: Any, work: Callable[[], None]) -> Any:
    mode = gpu.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    gpu.call("cudaStreamBeginCapture", stream, mode)
    work()
    graph = gpu.call("cudaStreamEndCapture", stream)
    made = gpu.call("cudaGraphInstantiate", graph, 0)
    gpu.call("cudaGraphDestroy", graph)
    return made


def _median_us(gpu: Gpu, stream: Any, work: Callable[[], Any]) -> float:
    found = []
    for _ in range(GRAPH_ROUNDS):
        begin = perf_counter()
        work()
        gpu.finish(stream)
        found.append(host_microseconds(begin))
    return median(found)

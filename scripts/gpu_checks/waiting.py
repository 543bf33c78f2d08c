"""How naiad waits for the GPU: how late it sees the end of an execution, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter, process_time
from typing import Final

from gpu_checks import rows
from gpu_checks.gpu import Gpu, host_microseconds
from gpu_checks.kernels import Kernels
from gpu_checks.rows import Row
from gpu_checks.steps import Options
from naiad.worker.backends.tensorrt.cuda import Cuda
from naiad.worker.backends.tensorrt.streams import Streams

EXECUTIONS: Final = ((100, 200), (1000, 200), (20_000, 25))
"""(microseconds, how many)"""
CORE_SHARE_MAX: Final = 0.5
"""Of a core, for the longest: more would be no better than spinning."""


def measure(options: Options) -> Iterator[Row]:
    gpu = Gpu()
    kernels = Kernels(gpu)
    cuda = Cuda(gpu.runtime, "gpu_check", 0)
    asleep, awake = Streams(cuda), Streams(cuda, is_spinning=True)
    kernels.busy(awake.execution, 10)
    awake.finish()
    share = 0.0
    for microseconds, count in EXECUTIONS:
        spun, _ = _waited(kernels, awake, microseconds, count)
        slept, share = _waited(kernels, asleep, microseconds, count)
        what = f"the end of {microseconds} us is seen later than by spinning"
        note = f"{spun:.0f} us by spinning, {share:.0%} of a core asleep"
        yield rows.told(what, slept - spun, "us", note)
    yield rows.at_most("a core's share of the longest wait", share, CORE_SHARE_MAX, "")
    for streams in (asleep, awake):
        streams.close()


def _waited(
    kernels: Kernels, streams: Streams, microseconds: int, count: int
) -> tuple[float, float]:
    """(microseconds from launch to seeing its end, share of a core meanwhile)"""
    event = streams.new_event()
    found = []
    begin, used = perf_counter(), process_time()
    for _ in range(count):
        launched = perf_counter()
        kernels.busy(streams.execution, microseconds)
        streams.mark_executed(event)
        streams.wait(event)
        found.append(host_microseconds(launched))
    share = (process_time() - used) / (perf_counter() - begin)
    streams.drop_event(event)
    return median(found), share

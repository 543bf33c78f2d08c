"""A fixed number of requests in flight: whenever one is answered, the next is sent. And the tally.

Knows clients and requests, no command line and no server. One process, one thread.
"""

from __future__ import annotations

import asyncio
import resource
import time
from array import array
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from naiad.cli.failure import CommandFailed
from naiad.client import AsyncClient, Client, Future, InferResult, Prepared
from naiad.protocol.errors import NaiadError

Json = dict[str, Any]

WARM_UP_SHARE: Final = 0.1
WARM_UP_S_MAX: Final = 1.0
SAMPLES_MAX: Final = 1 << 20
"""Latencies kept as they are; beyond, they are counted in classes."""
CLASS_WIDTH: Final = 0.01
FAILURES_MAX: Final = 1000
"""So many errors without one success end the measurement."""
TICK_S: Final = 0.02
NEVER_NS: Final = 1 << 63
_now_ns: Final = time.perf_counter_ns


def warm_up_s(seconds: float) -> float:
    """How long requests run before a measurement of so many seconds begins."""
    return min(WARM_UP_S_MAX, seconds * WARM_UP_SHARE)


class Measurement(NamedTuple):
    """One line of the result. Shares are of the requests' time in the server."""

    concurrency: int
    throughput: float
    p50_us: float
    p90_us: float
    p99_us: float
    errors: int
    queue_share: float
    compute_share: float
    client_cpu_us: float


class Tally:
    """Latencies and errors of the requests that are answered while it counts.

    Callbacks append to `samples`, in nanoseconds; `tick` is called now and then by the loop.
    `end_ns` is known once it counts, so that a process that gets no turn measures later, not less.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin_ns = _now_ns() + int(warm_up_s(seconds) * 1e9)
        self.end_ns = NEVER_NS
        self.samples = array("Q")
        self.errors = 0
        self._failures = 0
        self._counts = np.zeros(0, np.int64)
        """Samples that were too many to keep, in classes of one per cent."""
        self._cpu_s = 0.0
        self._started_ns = 0

    def tick(self, now_ns: int) -> None:
        """Begin when the warm-up is over; keep the memory bounded."""
        if not self._started_ns and now_ns >= self._begin_ns:
            self._started_ns = now_ns
            self.end_ns = now_ns + int(self._seconds * 1e9)
            self._cpu_s = cpu_s()
            self.errors = 0
            del self.samples[:]
        if len(self.samples) >= SAMPLES_MAX:
            self._fold()

    def failed(self, fault: BaseException) -> None:
        """Count an error. Raises CommandFailed when there is nothing but errors."""
        self.errors += 1
        self._failures = 1 if self.samples else self._failures + 1
        if self._failures >= FAILURES_MAX or not isinstance(fault, NaiadError):
            raise CommandFailed(f"{self._failures} requests in a row failed, the last: {fault}")

    def measurement(self, concurrency: int, before: Json, after: Json) -> Measurement:
        now_ns = _now_ns()
        cpu_used_s = cpu_s() - self._cpu_s
        seconds = (now_ns - self._started_ns) / 1e9
        answered = len(self.samples) + int(self._counts.sum())
        p50, p90, p99 = self._percentiles()
        queue, compute = shares(before, after)
        return Measurement(
            concurrency, round(answered / seconds, 1), round(p50, 1), round(p90, 1),
            round(p99, 1), self.errors, queue, compute,
            round(cpu_used_s / max(1, answered) * 1e6, 2),
        )  # fmt: skip

    def _fold(self) -> None:
        classes = np.log(np.frombuffer(self.samples, np.uint64)) / CLASS_WIDTH
        counts = np.bincount(classes.astype(np.int64), minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        self.samples = array("Q")

    def _percentiles(self) -> list[float]:
        """p50, p90, p99 in microseconds: exact, or to one per cent after very many requests."""
        if not len(self._counts):
            samples = np.frombuffer(self.samples, np.uint64) if self.samples else np.zeros(1)
            return [float(value) / 1e3 for value in np.percentile(samples, (50, 90, 99))]
        if self.samples:
            self._fold()
        ranks = np.cumsum(self._counts)
        found = np.searchsorted(ranks, ranks[-1] * np.array([0.5, 0.9, 0.99]))
        return [float(value) / 1e3 for value in np.exp((found + 0.5) * CLASS_WIDTH)]


def cpu_s() -> float:
    """User and system time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def shares(before: Json, after: Json) -> tuple[float, float]:
    """(queue, compute) as shares of the requests' whole time in the server, 0 to 1."""

    def spent(statistics: Json, *parts: str) -> int:
        stats = [one["inference_stats"] for one in statistics["model_stats"]]
        return sum(int(one[part]["ns"]) for one in stats for part in parts)

    def gained(*parts: str) -> int:
        return spent(after, *parts) - spent(before, *parts)

    whole = gained("success")
    if whole <= 0:
        return 0.0, 0.0
    compute = gained("compute_input", "compute_infer", "compute_output")
    return round(gained("queue") / whole, 4), round(compute / whole, 4)


def closed_loop(
    client: Client, requests: list[Prepared], tally: Tally, progress: Callable[[], None]
) -> None:
    """Keep each of the requests in flight until the tally's end, then wait for the last."""
    faults: list[CommandFailed] = []
    is_over = False
    submit = client.submit

    def lane(request: Prepared) -> None:
        start_ns = 0

        def answered(future: Future[InferResult]) -> None:
            nonlocal start_ns
            if is_over:  # broken off: what is in flight is given up, and is no error
                return
            now_ns = _now_ns()
            fault = future.exception()
            if fault is None:
                tally.samples.append(now_ns - start_ns)
            else:
                try:
                    tally.failed(fault)
                except CommandFailed as failed:
                    faults.append(failed)
                    return
            if now_ns < tally.end_ns:
                start_ns = now_ns
                submit(request, callback=answered)

        start_ns = _now_ns()
        submit(request, callback=answered)

    try:
        for request in requests:
            lane(request)
        while client.drive() and not faults:
            tally.tick(_now_ns())
            progress()
    finally:
        is_over = True
    if faults:
        raise faults[0]


async def async_closed_loop(
    client: AsyncClient, requests: list[Prepared], tally: Tally, progress: Callable[[], None]
) -> None:
    """The same with one task for each request in flight."""

    async def lane(request: Prepared) -> None:
        now_ns = start_ns = _now_ns()
        while now_ns < tally.end_ns:
            try:
                await client.infer(request)
            except NaiadError as fault:
                tally.failed(fault)
                now_ns = start_ns = _now_ns()
                continue
            now_ns = _now_ns()
            tally.samples.append(now_ns - start_ns)
            start_ns = now_ns

    async def ticking() -> None:
        while True:
            tally.tick(_now_ns())
            progress()
            await asyncio.sleep(TICK_S)

    ticks = asyncio.ensure_future(ticking())
    try:
        async with asyncio.TaskGroup() as lanes:
            for request in requests:
                lanes.create_task(lane(request))
    except* CommandFailed as group:
        raise group.exceptions[0] from None
    finally:
        ticks.cancel()

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
"""Beyond, every second latency is kept, then every fourth, ..."""
FAILURES_MAX: Final = 1000
"""So many errors without one success end the measurement."""
TICK_S: Final = 0.1
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
    """Latencies and errors between `begin` and `end`, of however many requests there are."""

    def __init__(self, seconds: float) -> None:
        self.begin_ns = _now_ns() + int(warm_up_s(seconds) * 1e9)
        self.end_ns = self.begin_ns + int(seconds * 1e9)
        self.answered = 0
        self.errors = 0
        self._samples = array("Q")
        self._stride = 1
        self._failures = 0
        self._cpu_s = 0.0

    def add(self, start_ns: int, now_ns: int, fault: BaseException | None) -> bool:
        """Count an answer that came now; whether to send another request."""
        if fault is not None:
            self._failed(fault)
        elif start_ns >= self.begin_ns:
            self.answered = answered = self.answered + 1
            self._failures = 0
            if not answered % self._stride:
                self._samples.append(now_ns - start_ns)
                if len(self._samples) >= SAMPLES_MAX:
                    self._samples = self._samples[::2]
                    self._stride *= 2
        elif not self._cpu_s:
            self._cpu_s = cpu_s()
        return now_ns < self.end_ns

    def _failed(self, fault: BaseException) -> None:
        self.errors += 1
        self._failures += 1
        if self._failures >= FAILURES_MAX or not isinstance(fault, NaiadError):
            raise CommandFailed(f"{self._failures} requests in a row failed, the last: {fault}")

    def measurement(self, concurrency: int, before: Json, after: Json) -> Measurement:
        seconds = (_now_ns() - self.begin_ns) / 1e9
        samples = np.frombuffer(self._samples, np.uint64) if self._samples else np.zeros(1)
        p50, p90, p99 = np.percentile(samples, (50, 90, 99)) / 1e3
        queue, compute = shares(before, after)
        cpu_us = (cpu_s() - self._cpu_s) / max(1, self.answered) * 1e6
        return Measurement(
            concurrency, round(self.answered / seconds, 1), round(p50, 1), round(p90, 1),
            round(p99, 1), self.errors, queue, compute, round(cpu_us, 2),
        )  # fmt: skip


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
    client: Client, requests: list[Prepared], tally: Tally, tick: Callable[[], None]
) -> None:
    """Keep each of the requests in flight until the tally's end, then wait for the last."""
    faults: list[CommandFailed] = []

    def lane(request: Prepared) -> None:
        start_ns = 0

        def answered(future: Future[InferResult]) -> None:
            nonlocal start_ns
            now_ns = _now_ns()
            try:
                goes_on = tally.add(start_ns, now_ns, future.exception())
            except CommandFailed as fault:
                faults.append(fault)
                return
            if goes_on:
                start_ns = now_ns
                client.submit(request, callback=answered)

        start_ns = _now_ns()
        client.submit(request, callback=answered)

    for request in requests:
        lane(request)
    while client.drive() and not faults:
        tick()
    if faults:
        raise faults[0]


async def async_closed_loop(
    client: AsyncClient, requests: list[Prepared], tally: Tally, tick: Callable[[], None]
) -> None:
    """The same with one task for each request in flight."""

    async def lane(request: Prepared) -> None:
        goes_on = True
        while goes_on:
            start_ns = _now_ns()
            fault: NaiadError | None = None
            try:
                await client.infer(request)
            except NaiadError as raised:
                fault = raised
            goes_on = tally.add(start_ns, _now_ns(), fault)

    async def ticking() -> None:
        while True:
            tick()
            await asyncio.sleep(TICK_S)

    progress = asyncio.ensure_future(ticking())
    try:
        async with asyncio.TaskGroup() as lanes:
            for request in requests:
                lanes.create_task(lane(request))
    except* CommandFailed as group:
        raise group.exceptions[0] from None
    finally:
        progress.cancel()

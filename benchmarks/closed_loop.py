"""Closed loops over naiad's own clients: a fixed number of requests in flight for a fixed time.

The request is prepared once, as load generators do (wrk and perf_analyzer send one fixed body).
With `reads` each answer is also taken as an array, as an application does. Every loop counts errors
and ends. Latency counts from before the call that submits until the answer is in the caller's
hands.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any, Final, NamedTuple

from naiad.client import AsyncClient, Client, Future, InferResult, NaiadError, Prepared

OUTPUT: Final = "OUTPUT0"
ERRORS_MAX: Final = 100
"""A loop in which more requests failed measures nothing and ends."""
STALL_SECONDS_MAX: Final = 30.0

_clock: Final = time.perf_counter_ns


class Measured(NamedTuple):
    """What one loop gave; latencies in microseconds."""

    requests: int
    seconds: float
    p50_us: float
    p90_us: float
    p99_us: float
    errors: int

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


class _Tally:
    """Latencies and errors of one loop."""

    def __init__(self, seconds: float) -> None:
        gc.collect()
        self.latencies: list[int] = []
        self.errors = 0
        self.begin_ns = _clock()
        self.end_ns = self.begin_ns + int(seconds * 1e9)

    def failed(self, fault: BaseException) -> None:
        self.errors += 1
        if self.errors > ERRORS_MAX:
            raise SystemExit(f"more than {ERRORS_MAX} requests failed: {fault}") from fault

    def measured(self) -> Measured:
        seconds = (_clock() - self.begin_ns) / 1e9
        ordered = sorted(self.latencies)
        if not ordered:
            raise SystemExit("no request was answered")
        p50, p90, p99 = [ordered[int(len(ordered) * share)] / 1e3 for share in (0.5, 0.9, 0.99)]
        return Measured(len(ordered), seconds, p50, p90, p99, self.errors)


def blocking_loop(
    client: Client, request: Prepared, in_flight: int, seconds: float, *, reads: bool = False
) -> Measured:
    """`Client` in one thread: `infer` at 1 in flight, else each answer's callback submits the next
    request."""
    tally = _Tally(seconds)
    if in_flight == 1:
        _one_after_another(client, request, tally, reads)
    else:
        _with_callbacks(client, request, in_flight, tally, reads)
    return tally.measured()


def _one_after_another(client: Client, request: Prepared, tally: _Tally, reads: bool) -> None:
    now = tally.begin_ns
    while now < tally.end_ns:
        before = now
        try:
            result = client.infer(request)
            if reads:
                result[OUTPUT]
        except NaiadError as fault:
            tally.failed(fault)
        now = _clock()
        tally.latencies.append(now - before)


def _with_callbacks(
    client: Client, request: Prepared, in_flight: int, tally: _Tally, reads: bool
) -> None:
    def lane() -> None:
        before = 0

        def answered(future: Future[InferResult]) -> None:
            nonlocal before
            now = _clock()
            fault = future.exception()
            if fault is not None:
                faults.append(fault)
                return
            if reads:
                future.result()[OUTPUT]
                now = _clock()
            tally.latencies.append(now - before)
            if now < tally.end_ns:
                before = now
                client.submit(request, callback=answered)

        before = _clock()
        client.submit(request, callback=answered)

    faults: list[NaiadError] = []
    for _ in range(in_flight):
        lane()
    while client.drive(STALL_SECONDS_MAX):
        if faults:
            raise SystemExit(f"a request failed: {faults[0]}")


async def async_loop(
    client: AsyncClient, request: Prepared, in_flight: int, seconds: float, *, reads: bool = True
) -> Measured:
    """`AsyncClient` with one task for each request in flight."""
    tally = _Tally(seconds)

    async def lane() -> None:
        while (before := _clock()) < tally.end_ns:
            try:
                result = await client.infer(request)
                if reads:
                    result[OUTPUT]
            except NaiadError as fault:
                tally.failed(fault)
            else:
                tally.latencies.append(_clock() - before)

    await asyncio.gather(*[lane() for _ in range(in_flight)])
    return tally.measured()


def checked_answer(result: InferResult, expected: Any) -> None:
    """An answer that is wrong makes every figure worthless."""
    found = result[OUTPUT]
    if found.shape != expected.shape or not (found == expected).all():
        raise SystemExit(f"wrong answer: {found!r:.200}")

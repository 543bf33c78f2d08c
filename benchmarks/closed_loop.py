"""Closed loops over naiad's own clients: a fixed number of requests in flight for a fixed time.

Each lane (one request in flight) has its arguments of `submit` and submits them again and again:
usually a prepared request, as load generators do (wrk and perf_analyzer send one fixed body). With
`reads` that output of each answer is also taken as an array, as an application does. Every loop
counts errors and ends. Latency counts from before the call that submits until the answer is in the
caller's hands.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any, Final, NamedTuple

from naiad.client import AsyncClient, Client, Future, InferResult, NaiadError

ERRORS_MAX: Final = 100
"""A loop in which more requests failed measures nothing and ends."""
STALL_SECONDS_MAX: Final = 30.0

Arguments = tuple[Any, ...]
"""Of `infer` and `submit`: (prepared,) or (model, inputs, outputs)."""

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
    client: Client, lanes: list[Arguments], seconds: float, *, reads: str = ""
) -> Measured:
    """`Client` in one thread: `infer` with one lane, else each answer's callback submits the lane's
    next request."""
    tally = _Tally(seconds)
    if len(lanes) == 1:
        _one_after_another(client, lanes[0], tally, reads)
    else:
        _with_callbacks(client, lanes, tally, reads)
    return tally.measured()


def _one_after_another(client: Client, asked: Arguments, tally: _Tally, reads: str) -> None:
    now = tally.begin_ns
    while now < tally.end_ns:
        before = now
        try:
            result = client.infer(*asked)
            if reads:
                result[reads]
        except NaiadError as fault:
            tally.failed(fault)
            now = _clock()
        else:
            now = _clock()
            tally.latencies.append(now - before)


def _with_callbacks(client: Client, lanes: list[Arguments], tally: _Tally, reads: str) -> None:
    def start(asked: Arguments) -> None:
        before = 0

        def answered(future: Future[InferResult]) -> None:
            nonlocal before
            now = _clock()
            fault = future.exception()
            if fault is not None:
                faults.append(fault)
                return
            if reads:
                future.result()[reads]
                now = _clock()
            tally.latencies.append(now - before)
            if now < tally.end_ns:
                before = now
                client.submit(*asked, callback=answered)

        before = _clock()
        client.submit(*asked, callback=answered)

    faults: list[NaiadError] = []
    for asked in lanes:
        start(asked)
    while client.drive(STALL_SECONDS_MAX):
        if faults:
            raise SystemExit(f"a request failed: {faults[0]}")


async def async_loop(
    client: AsyncClient, lanes: list[Arguments], seconds: float, *, reads: str = ""
) -> Measured:
    """`AsyncClient` with one task for each lane."""
    tally = _Tally(seconds)

    async def run(asked: Arguments) -> None:
        while (before := _clock()) < tally.end_ns:
            try:
                result = await client.infer(*asked)
                if reads:
                    result[reads]
            except NaiadError as fault:
                tally.failed(fault)
            else:
                tally.latencies.append(_clock() - before)

    await asyncio.gather(*map(run, lanes))
    return tally.measured()


def require_answer(found: Any, expected: Any) -> None:
    """An answer that is wrong makes every figure worthless."""
    if found.shape != expected.shape or not (found == expected).all():
        raise SystemExit(f"wrong answer: {found!r:.200}")

"""Closed loops over the native client: a fixed number of requests in flight for a fixed time.

Every loop checks each answer's shape, counts errors, and ends. Latency is measured from the call
that submits until the caller has the array, by the caller's own clock.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from typing import Any, Final, NamedTuple

from naiad.client import Client, InferResult, NaiadError

INPUT: Final = "INPUT0"
OUTPUT: Final = "OUTPUT0"
ERRORS_MAX: Final = 100
"""A loop in which more requests failed measures nothing and ends."""
STALL_SECONDS_MAX: Final = 30.0


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


def measured(latencies_ns: list[int], seconds: float, errors: int) -> Measured:
    """Counts and percentiles of a loop's latencies."""
    ordered = sorted(latencies_ns)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e3 if ordered else 0.0

    return Measured(
        len(ordered), seconds, quantile(0.5), quantile(0.9), quantile(0.99), errors
    )  # fmt: skip


def blocking_loop(
    client: Client, model: str, array: Any, in_flight: int, seconds: float
) -> Measured:
    """`Client` in one thread: `infer` at 1 in flight, else a window of futures."""
    inputs = {INPUT: array}
    _check(client.infer(model, inputs), array)
    gc.collect()
    if in_flight == 1:
        return _one_after_another(client, model, inputs, seconds)
    return _window(client, model, inputs, in_flight, seconds)


def _check(result: InferResult, array: Any) -> None:
    if result[OUTPUT].shape[0] != array.shape[0]:
        raise SystemExit(f"wrong answer: shape {result[OUTPUT].shape} for {array.shape}")


def _one_after_another(
    client: Client, model: str, inputs: dict[str, Any], seconds: float
) -> Measured:
    latencies: list[int] = []
    clock = time.perf_counter_ns
    begin = clock()
    end = begin + int(seconds * 1e9)
    now = begin
    while now < end:
        client.infer(model, inputs)[OUTPUT]
        after = clock()
        latencies.append(after - now)
        now = after
    return measured(latencies, (now - begin) / 1e9, 0)


def _window(
    client: Client, model: str, inputs: dict[str, Any], in_flight: int, seconds: float
) -> Measured:
    """Waits for the oldest request, and puts a new one in the place of each that is done."""
    latencies: list[int] = []
    errors = 0
    clock = time.perf_counter_ns
    submit = client.submit
    begin = clock()
    end = begin + int(seconds * 1e9)
    pending = deque([(submit(model, inputs), clock()) for _ in range(in_flight)])
    while pending:
        future, submitted = pending.popleft()
        try:
            future.result(STALL_SECONDS_MAX)[OUTPUT]
            now = clock()
            latencies.append(now - submitted)
        except NaiadError as fault:
            now = clock()
            errors += 1
            if errors > ERRORS_MAX:
                raise SystemExit(f"more than {ERRORS_MAX} requests failed: {fault}") from fault
        if now < end:
            pending.append((submit(model, inputs), now))
    return measured(latencies, (clock() - begin) / 1e9, errors)

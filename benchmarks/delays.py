"""Whether what should happen at a moment happens then: batching delays and timeouts.

    PYTHONPATH=src python -m benchmarks.delays --rounds 7

A lone request of a model with `max_queue_delay_microseconds: 100` waits for company that does not
come: how long, is in the server's statistics after each request, and what a client sees of it is
its latency less that of the same model without a delay. And a request with a timeout of 10 ms is
sent while the model's only instance runs something that takes 2 s: when its error comes is what a
client's clock says.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.processes import end_on_sigterm, wait_for_quiet
from benchmarks.questions import QUESTIONS
from benchmarks.report import Verdict, append_rows, rounds_parser
from benchmarks.variants import Variant, write_repository

from naiad.client import Client, Code, NaiadError, Prepared, prepare
from naiad.testing.server import serve

DELAY_US: Final = 100
DELAYED_BAR_US: Final = (100.0, 300.0)
TIMEOUT_US: Final = 10_000
ANSWERED_BAR_MS: Final = (10.0, 20.0)
EXECUTION_MS: Final = 2000
REQUESTS_PER_ROUND: Final = 100
TIMEOUTS_PER_ROUND: Final = 5
QUIET_WAIT_SECONDS_MAX: Final = 10.0
QUEUE_POLICY: Final = "default_queue_policy { allow_timeout_override: true }"

DELAYED: Final = Variant("delayed", delay_us=DELAY_US)
PROMPT: Final = Variant("prompt")
BUSY: Final = Variant("busy", queue_policy=QUEUE_POLICY)


def main() -> int:
    options = rounds_parser(__doc__).parse_args()
    end_on_sigterm()
    queued_us: list[float] = []
    seen_us: list[float] = []
    answered_ms: list[float] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="naiad-delays-")))
        repository = write_repository(folder / "repository", [DELAYED, PROMPT, BUSY])
        server = stack.enter_context(serve(repository, arguments=["--spares", "0"]))
        client = stack.enter_context(Client(server.run_dir))
        for _ in range(options.rounds):
            wait_for_quiet(options.others_max, QUIET_WAIT_SECONDS_MAX)
            queued_us += _queue_times_us(client, DELAYED)
            seen_us.append(_latency_us(client, DELAYED) - _latency_us(client, PROMPT))
            answered_ms += _timeouts_ms(client)
    verdicts = _verdicts(queued_us, answered_ms)
    print("\n".join(_report(queued_us, seen_us, answered_ms, verdicts)), flush=True)
    if options.json:
        found = {"queued_us": queued_us, "seen_us": seen_us, "answered_ms": answered_ms}
        append_rows(options.json, [{"benchmark": "delays", **found}])
    return 0 if all(verdict.is_reached for verdict in verdicts) else 1


def _request(model: Variant) -> Prepared:
    return prepare(model.name, QUESTIONS["identity"]().inputs)


def _queue_times_us(client: Client, model: Variant) -> list[float]:
    """How long each of several lone requests was queued."""
    request = _request(model)
    values = []
    before = _queue_ns(client, model)
    for _ in range(REQUESTS_PER_ROUND):
        client.infer(request)
        after = _queue_ns(client, model)
        values.append((after - before) / 1e3)
        before = after
    return values


def _queue_ns(client: Client, model: Variant) -> int:
    (found,) = client.statistics(model.name)["model_stats"]
    return int(found["inference_stats"]["queue"]["ns"])


def _latency_us(client: Client, model: Variant) -> float:
    """Median of lone requests, as the client sees it."""
    request = _request(model)
    values = []
    for _ in range(REQUESTS_PER_ROUND):
        before = time.perf_counter_ns()
        client.infer(request)
        values.append((time.perf_counter_ns() - before) / 1e3)
    return statistics.median(values)


def _timeouts_ms(client: Client) -> list[float]:
    """When requests with a timeout fail that wait behind a long execution."""
    inputs = QUESTIONS["identity"]().inputs
    running = client.submit(BUSY.name, inputs, parameters={"sleep_ms": EXECUTION_MS})
    while not _is_executing(client):
        pass
    request = prepare(BUSY.name, inputs, timeout_us=TIMEOUT_US)
    values = []
    for _ in range(TIMEOUTS_PER_ROUND):
        before = time.perf_counter_ns()
        fault = client.submit(request).exception()
        values.append((time.perf_counter_ns() - before) / 1e6)
        if not isinstance(fault, NaiadError) or fault.code is not Code.TIMEOUT:
            raise SystemExit(f"expected a timeout, got {fault!r}")
    if running.done():
        raise SystemExit("the long execution ended before the timeouts behind it")
    running.cancel()
    return values


def _is_executing(client: Client) -> bool:
    return any(row["executing"] for row in client.status()["models"] if row["name"] == BUSY.name)


def _verdicts(queued_us: list[float], answered_ms: list[float]) -> list[Verdict]:
    low_us, high_us = DELAYED_BAR_US
    low_ms, high_ms = ANSWERED_BAR_MS
    delay = f"a delay of {DELAY_US} µs closes a lone request's batch after"
    timeout = (
        f"a timeout of 10 ms behind an execution of {EXECUTION_MS / 1e3:g} s is answered after"
    )
    return [
        Verdict(delay, "≥", low_us, queued_us, " µs"),
        Verdict(delay, "≤", high_us, queued_us, " µs"),
        Verdict(timeout, "≥", low_ms, answered_ms, " ms"),
        Verdict(timeout, "≤", high_ms, answered_ms, " ms"),
    ]


def _report(
    queued_us: list[float], seen_us: list[float], answered_ms: list[float], verdicts: list[Verdict]
) -> list[str]:
    lines = [
        "",
        f"### Delays and timeouts: {len(seen_us)} rounds",
        "",
        "| what | values | min | p10 | median | p90 | max |",
        "|---|---|---|---|---|---|---|",
        _line("time in the queue of a lone request, delay 100 µs; µs", queued_us),
        _line("what the delay adds to a client's median latency; µs", seen_us),
        _line("error of a 10 ms timeout behind a 2 s execution; ms", answered_ms),
        "",
    ]
    return lines + [str(verdict) for verdict in verdicts]


def _line(what: str, values: list[float]) -> str:
    ordered = sorted(values)
    last = len(ordered) - 1
    cells = [f"{ordered[round(last * share)]:.1f}" for share in (0, 0.1, 0.5, 0.9, 1)]
    return f"| {what} | {len(ordered)} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())

"""What scrapes of many models cost the broker's punctuality.

    PYTHONPATH=src python -m benchmarks.scrapes --rounds 7

200 models, of which one has a worker; all have their series. A lone request of a model with
`max_queue_delay_microseconds: 100` waits for company that does not come: how long it was queued
beyond that, by the server's own statistics, is how late the broker woke up. Rounds without and with
a scrape every 0.2 s take turns.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.processes import end_on_sigterm, wait_for_quiet
from benchmarks.questions import QUESTIONS
from benchmarks.report import Verdict, append_rows, rounds_parser
from benchmarks.variants import Variant, write_repository

from naiad.client import Client, prepare

MODELS: Final = 200
DELAY_US: Final = 100
LATE_P99_BAR_US: Final = 1000.0
REQUESTS_PER_ROUND: Final = 500
SCRAPES_APART_SECONDS: Final = 0.2
READY_SECONDS_MAX: Final = 60.0
QUIET_WAIT_SECONDS_MAX: Final = 10.0
ROOT: Final = Path(__file__).resolve().parents[1]
DELAYED: Final = Variant("a-delayed", delay_us=DELAY_US)


def main() -> int:
    options = rounds_parser(__doc__).parse_args()
    end_on_sigterm()
    quiet_us: list[list[float]] = []
    scraped_us: list[list[float]] = []
    scrapes_ms: list[float] = []
    with _served() as (run_dir, url), Client(run_dir) as client:
        _wait_ready(client)
        _lateness_us(client)
        for _ in range(options.rounds):
            wait_for_quiet(options.others_max, QUIET_WAIT_SECONDS_MAX)
            quiet_us.append(_lateness_us(client))
            with _scraping(url, scrapes_ms):
                scraped_us.append(_lateness_us(client))
    quiet_p99 = [_part(one, 0.99) for one in quiet_us]
    scraped_p99 = [_part(one, 0.99) for one in scraped_us]
    what = f"{MODELS} models: p99 of how late the broker wakes up"
    verdicts = [
        Verdict(f"{what}, while scraped", "≤", LATE_P99_BAR_US, scraped_p99, " µs"),
        Verdict(f"{what}, without scrapes", "≤", None, quiet_p99, " µs"),
    ]
    print("\n| | rounds | wake-ups | p50 µs | p99 µs | max µs |\n|---|---|---|---|---|---|")
    for name, rounds in (("without scrapes", quiet_us), ("while scraped", scraped_us)):
        values = [value for one in rounds for value in one]
        cells = " | ".join(f"{_part(values, share):.0f}" for share in (0.5, 0.99, 1))
        print(f"| {name} | {len(rounds)} | {len(values)} | {cells} |")
    print(f"\n{len(scrapes_ms)} scrapes, median {_part(scrapes_ms, 0.5):.0f} ms\n")
    print("\n".join(map(str, verdicts)), flush=True)
    if options.json:
        row = {"quiet_us": quiet_us, "scraped_us": scraped_us, "scrapes_ms": scrapes_ms}
        append_rows(options.json, [{"benchmark": "scrapes", **row}])
    return 0 if all(verdict.is_reached for verdict in verdicts) else 1


@contextlib.contextmanager
def _served() -> Iterator[tuple[str, str]]:
    """A broker, one worker (the first model's) and metrics: run directory, address of the page."""
    with (
        tempfile.TemporaryDirectory(prefix="naiad-scrapes-") as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        variants = [DELAYED, *(Variant(f"waiting-{number}") for number in range(1, MODELS))]
        repository = write_repository(Path(folder) / "repository", variants)
        run_dir = Path(folder) / "run"
        run_dir.mkdir(mode=0o700)
        commands = (
            ["naiad.broker", "--name", f"scrapes-{os.getpid()}", "--repository", str(repository)],
            ["naiad.worker", "--slot", "cpu-0", "--device", "cpu"],
            ["naiad.metrics", "--fd", str(listener.fileno())],
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, "--run-dir", str(run_dir), *arguments],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                pass_fds=[listener.fileno()],
                stderr=subprocess.DEVNULL,
            )
            for module, *arguments in commands
        ]
        try:
            yield str(run_dir), f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        finally:
            for process in processes[::-1]:
                process.terminate()
            for process in processes:
                process.wait()


def _wait_ready(client: Client) -> None:
    end = time.monotonic() + READY_SECONDS_MAX
    while not client.model_ready(DELAYED.name):
        if time.monotonic() > end:
            raise SystemExit(f"{DELAYED.name} is not ready within {READY_SECONDS_MAX:g} s")


def _lateness_us(client: Client) -> list[float]:
    """How much longer than its delay each of several lone requests was queued."""
    request = prepare(DELAYED.name, QUESTIONS["identity"]().inputs)
    values = []
    before = _queue_ns(client)
    for _ in range(REQUESTS_PER_ROUND):
        client.infer(request)
        after = _queue_ns(client)
        values.append((after - before) / 1e3 - DELAY_US)
        before = after
    return values


def _queue_ns(client: Client) -> int:
    (found,) = client.statistics(DELAYED.name)["model_stats"]
    return int(found["inference_stats"]["queue"]["ns"])


@contextlib.contextmanager
def _scraping(url: str, taken_ms: list[float]) -> Iterator[None]:
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(SCRAPES_APART_SECONDS):
            begun = time.perf_counter()
            with urllib.request.urlopen(url, timeout=READY_SECONDS_MAX) as answer:
                answer.read()
            taken_ms.append((time.perf_counter() - begun) * 1e3)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _part(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * share)]


if __name__ == "__main__":
    sys.exit(main())

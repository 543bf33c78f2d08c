"""What batch sizes and the late second batch do to throughput, for several execution times.

    PYTHONPATH=src python -m benchmarks.batching late --rounds 7 --seconds 1

`late` has a model that takes its time for each batch, with `naiad.late_batch` on and off; `sizes`
has the echo with several batch sizes. Every round runs each case once; the order turns round with
every round. The mean batch comes from the server's statistics, the CPU is that of broker, worker
and client together. There is no bar: the tables show what a setting is worth.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import native
from benchmarks.closed_loop import Measured
from benchmarks.processes import cpu_of, end_on_sigterm, wait_for_quiet
from benchmarks.report import Row, append_rows, rounds_parser, spread
from benchmarks.variants import Variant, write_repository

from naiad.client import Client
from naiad.testing.server import Server, serve

QUIET_WAIT_SECONDS_MAX: Final = 10.0


class Case(NamedTuple):
    """One line's half: a model and how many requests are in flight."""

    model: Variant
    in_flight: int


class Found(NamedTuple):
    """One run of one case."""

    measured: Measured
    mean_batch: float
    early_share: float
    """Batches sent while another one ran, of all."""
    cpu_us: float
    """CPU per request of broker, worker and client together, in microseconds."""

    @property
    def cores(self) -> float:
        """How many cores the three kept busy; more than one only where their work overlaps."""
        return self.cpu_us * self.measured.rate / 1e6


def _pair(name: str, in_flight: int, **settings: Any) -> list[Case]:
    return [
        Case(Variant(f"{name}_{'late' if late else 'single'}", late_batch=late, **settings), number)
        for number in (in_flight,)
        for late in (True, False)
    ]


def late_cases() -> list[Case]:
    """Executions of 0, 1 and 5 ms: small batches with twice as many in flight, and larger ones."""
    cases = []
    for milliseconds in (0, 1, 5):
        for batch_max, in_flight in ((8, 16), (32, 64)):
            name = f"paced{milliseconds}_{batch_max}"
            cases += _pair(name, in_flight, batch_max=batch_max, execution_ms=float(milliseconds))
    return cases


def size_cases() -> list[Case]:
    """The echo, in batches of at most 64, 16, 8 and 4."""
    cases = []
    for in_flight in (16, 64):
        for batch_max in (64, 16, 8, 4):
            cases += _pair(f"echo{batch_max}", in_flight, batch_max=batch_max)
    return cases


CASES: Final = {"late": late_cases, "sizes": size_cases}


def main() -> int:
    options = _options()
    end_on_sigterm()
    for name in options.tables:
        cases = CASES[name]()
        rounds = _measure(cases, options)
        print("\n".join(_table(name, cases, rounds, options)), flush=True)
        if options.json:
            append_rows(options.json, _rows(name, cases, rounds))
    return 0


def _options() -> argparse.Namespace:
    parser = rounds_parser(__doc__)
    parser.add_argument("tables", nargs="+", choices=sorted(CASES))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each case in each round")
    return parser.parse_args()


def _measure(cases: list[Case], options: argparse.Namespace) -> list[dict[Case, Found]]:
    rounds = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="naiad-batching-")))
        models = list(dict.fromkeys(case.model for case in cases))
        repository = write_repository(folder / "repository", models)
        server = stack.enter_context(serve(repository, arguments=["--spares", "0"]))
        client = stack.enter_context(Client(server.run_dir))
        for index in range(options.rounds):
            wait_for_quiet(options.others_max, QUIET_WAIT_SECONDS_MAX)
            ordered = cases if index % 2 == 0 else cases[::-1]
            rounds.append({case: _run(server, client, case, options.seconds) for case in ordered})
    return rounds


def _run(server: Server, client: Client, case: Case, seconds: float) -> Found:
    model, in_flight = case
    workers = [r["pid"] for r in client.status()["instances"] if r["model"] == model.name]
    pids = [server.pids["broker"], *workers]
    counts: list[int] = []
    used: list[float] = []

    def note() -> None:
        counts.extend(_counts(client, model.name))
        used.extend(cpu_of(pid).total for pid in pids)

    measured, client_cpu = native.run(
        str(server.run_dir), model.name, in_flight, seconds, question="identity", on_warm=note
    )
    cpu = client_cpu.total + sum(cpu_of(pid).total for pid in pids) - sum(used)
    rows, batches, early = (
        after - earlier for after, earlier in zip(_counts(client, model.name), counts, strict=True)
    )
    return Found(measured, rows / batches, early / batches, cpu / measured.requests * 1e6)


def _counts(client: Client, model: str) -> tuple[int, int, int]:
    (found,) = client.statistics(model)["model_stats"]
    early = client.status()["counters"]["early_batches"]
    return found["inference_count"], found["execution_count"], early


def _table(
    name: str, cases: list[Case], rounds: list[dict[Case, Found]], options: argparse.Namespace
) -> list[str]:
    lines = [
        "",
        f"### {name}: {options.rounds} rounds of {options.seconds:g} s",
        "",
        "| execution ms | batch at most | in flight | late batch | req/s, median (min-max)"
        " | p50 ms | mean batch | batches sent early | CPU µs/req | cores |",
        "|" + "---|" * 10,
    ]
    for case in cases:
        found = [one[case] for one in rounds]
        model = case.model
        execution = "echo" if model.execution_ms is None else f"{model.execution_ms:g}"
        cells = [
            execution,
            str(model.batch_max),
            str(case.in_flight),
            "on" if model.late_batch else "off",
            spread([one.measured.rate for one in found]),
            f"{statistics.median(one.measured.p50_us for one in found) / 1e3:.2f}",
            f"{statistics.median(one.mean_batch for one in found):.1f}",
            f"{statistics.median(one.early_share for one in found):.0%}",
            f"{statistics.median(one.cpu_us for one in found):.0f}",
            f"{statistics.median(one.cores for one in found):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rows(name: str, cases: list[Case], rounds: list[dict[Case, Found]]) -> list[Row]:
    return [
        {
            "benchmark": f"batching {name}",
            "round": index,
            **case.model._asdict(),
            "in_flight": case.in_flight,
            "mean_batch": one[case].mean_batch,
            "early_share": one[case].early_share,
            "cpu_us": one[case].cpu_us,
            **one[case].measured._asdict(),
        }
        for index, one in enumerate(rounds)
        for case in cases
    ]


if __name__ == "__main__":
    sys.exit(main())

"""Every benchmark, one after the other: what docs/performance.md shows, with one command.

    PYTHONPATH=src python -m benchmarks.all --out DIR --triton-command "..." [--perf-analyzer ...]

Runs each benchmark in a process of its own (about 20 minutes on a quiet machine of two cores) and
writes to DIR: tables.md with all tables and, at its head, every bar; one .md and one .jsonl for
each benchmark; versions and build of what ran. What it does not know it passes to
benchmarks.versus, which says how to name the peers. A benchmark that fails stops no other. The exit
code is 1 when a bar was missed or a benchmark failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.processes import end_on_sigterm
from benchmarks.report import INFORMATION, MISSED, REACHED

STEP_SECONDS_MAX: Final = 900.0
STOP_SECONDS_MAX: Final = 60.0
VERSUS: Final = ("native-64", "native-16", "python-16", "python-1", "large", "vad")


class Step(NamedTuple):
    """A benchmark: name of its files, module and arguments."""

    name: str
    module: str
    arguments: tuple[str, ...]


class Outcome(NamedTuple):
    """How a step ended: `failure` is empty when it ran to its end, and then `code` 0 means that no
    bar was missed."""

    step: Step
    text: str
    code: int
    failure: str
    seconds: float

    @property
    def bars(self) -> list[str]:
        marks = tuple(f"- {mark}:" for mark in (REACHED, MISSED, INFORMATION))
        return [line for line in self.text.splitlines() if line.startswith(marks)]

    @property
    def is_good(self) -> bool:
        return not self.failure and self.code == 0


def main() -> int:
    options, further = _options()
    end_on_sigterm()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for step in _steps(options, out, further):
        if options.only and step.name not in options.only.split(","):
            continue
        print(f"{time.strftime('%H:%M:%S')} {step.name}: begins", file=sys.stderr, flush=True)
        outcome = _run(step, out)
        outcomes.append(outcome)
        print(outcome.failure or outcome.text, flush=True)
    report = "\n".join(_report(outcomes))
    (out / "tables.md").write_text(report)
    print("\n".join(_summary(outcomes)))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="folder for what is written")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load in each round")
    parser.add_argument("--others-max", type=float, default=0.3, help="in cores, before a round")
    parser.add_argument("--only", default="", help="names of benchmarks, with commas")
    return parser.parse_known_args()


def _steps(options: argparse.Namespace, out: Path, further: list[str]) -> list[Step]:
    rounds = ("--rounds", str(options.rounds))
    seconds = ("--seconds", str(options.seconds))
    others = ("--others-max", str(options.others_max))

    def step(name: str, module: str, *arguments: str) -> Step:
        json = out / f"{name}.jsonl"
        json.unlink(missing_ok=True)
        return Step(name, module, (*arguments, *rounds, *others, "--json", str(json)))

    return [
        Step("core", "benchmarks.core", ("--requests", "8000", "--rounds", "5")),
        step("cpu", "benchmarks.cpu", *seconds),
        *[step(name, "benchmarks.versus", name, *seconds, *further) for name in VERSUS],
        step("delays", "benchmarks.delays"),
        step("scrapes", "benchmarks.scrapes"),
        step("late", "benchmarks.batching", "late", *seconds),
        step("sizes", "benchmarks.batching", "sizes", *seconds),
    ]


def _run(step: Step, out: Path) -> Outcome:
    begin = time.monotonic()
    command = [sys.executable, "-m", step.module, *step.arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    failure = ""
    try:
        text, _ = process.communicate(timeout=STEP_SECONDS_MAX)
        if process.returncode and MISSED not in text.upper():
            failure = f"{step.name} ended with exit code {process.returncode}; see its errors above"
    except subprocess.TimeoutExpired:
        text, failure = "", f"{step.name} took longer than {STEP_SECONDS_MAX:g} s"
    finally:
        _stop(process)
    (out / f"{step.name}.md").write_text(text)
    return Outcome(step, text, process.returncode, failure, time.monotonic() - begin)


def _stop(process: subprocess.Popen[str]) -> None:
    """It stops its servers itself when asked."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS_MAX)
        process.kill()
        process.wait()


def _report(outcomes: list[Outcome]) -> list[str]:
    lines = [*_machine(), "", *_summary(outcomes)]
    for outcome in outcomes:
        step = outcome.step
        lines += ["", f"## {step.name}", "", f"    {step.module} {' '.join(step.arguments)}", ""]
        lines.append(outcome.failure or outcome.text.strip())
    return [*lines, ""]


def _summary(outcomes: list[Outcome]) -> list[str]:
    lines = ["## Bars", ""]
    for outcome in outcomes:
        name = outcome.step.name
        if outcome.failure:
            lines.append(f"- FAILED: {outcome.failure}")
        elif not outcome.bars:
            lines.append(f"- {REACHED if outcome.is_good else MISSED}: {name}, see its table")
        lines += outcome.bars
    seconds = sum(outcome.seconds for outcome in outcomes)
    return [*lines, "", f"In {seconds / 60:.1f} minutes; ratios of `versus` are taken per round."]


def _machine() -> list[str]:
    names = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    cpu = names[0].partition(":")[2].strip() if names else platform.machine()
    return [
        f"# Benchmarks of {time.strftime('%Y-%m-%d %H:%M')}",
        "",
        f"- {os.cpu_count()} CPUs ({cpu}), Linux {platform.release()}",
        f"- Python {sys.version} at {sys.executable}",
        f"- load averages at the end: {' '.join(f'{load:.2f}' for load in os.getloadavg())}",
    ]


if __name__ == "__main__":
    sys.exit(main())

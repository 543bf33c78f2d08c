"""The script: every step in a process of its own, within its time; then the table, and the verdict.

Looks at no GPU itself, so that whatever a step does to its process, the others are looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Final

from gpu_checks import rows, wheels
from gpu_checks.gpu import SEGMENT_PREFIX, SHM
from gpu_checks.rows import Row
from gpu_checks.steps import PROBE, STEPS, Options, Step, take

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = ROOT / "scripts" / "gpu_check"
TOTAL_SECONDS_MAX: Final = 480.0
LAST_WORDS_LINES: Final = 3

ALL_PASS: Final = 0
SOME_FAIL: Final = 1
USAGE: Final = 2
NO_GPU: Final = 3

_EPILOG: Final = """\
exit codes: 0 no row fails; 1 some do; 2 called wrongly, or cuda.bindings is missing; 3 there is no
GPU here. docs/gpu.md says what each step proves."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parsed(arguments)
    options = Options(tuple(map(str, given.plan)))
    if given.take:
        take(given.take, options, given.rows_to)
        return ALL_PASS
    with tempfile.TemporaryDirectory(prefix="naiad-gpu-check-") as folder:
        environment = dict(os.environ)
        if given.wheels is not None:
            try:
                names = wheels.unpack(given.wheels, Path(folder, "site"))
            except (OSError, ValueError) as error:
                print(f"gpu_check: --wheels: {error}", file=sys.stderr)
                return USAGE
            print(f"gpu_check: {len(names)} wheels of {given.wheels}", file=sys.stderr)
            known = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(Path(folder, "site")), known))
            )
        return _Run(options, environment, Path(folder)).all(given.steps, given.out)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(
        "gpu_check",
        description="Prove and measure naiad's work on this machine's GPU, in 8 minutes at most.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="wheels to use beside what is installed"
    )
    parser.add_argument(
        "--plan", type=Path, action="append", default=[], metavar="FILE",
        help="a TensorRT plan to run; FILE.npz beside it may hold inputs and expected outputs",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows as JSON, too")
    parser.add_argument(
        "--only", dest="steps", metavar="STEP,...", type=lambda text: text.split(","),
        default=names, help=f"some of: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--take", help=argparse.SUPPRESS)
    parser.add_argument("--rows-to", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    unknown = [name for name in given.steps if name not in names]
    if unknown:
        parser.error(f"--only: no step {', '.join(unknown)}; there are {', '.join(names)}")
    given.plan = [path.resolve() for path in given.plan]
    return given


class _Run:
    def __init__(self, options: Options, environment: dict[str, str], folder: Path) -> None:
        self._options = options
        self._environment = environment
        self._folder = folder
        self._end = monotonic() + TOTAL_SECONDS_MAX
        self._rows: list[Row] = []

    def all(self, names: Sequence[str], out: Path | None) -> int:
        steps = [step for step in STEPS if step.name in names]
        code = self._probe(steps)
        if code == ALL_PASS:
            for step in steps:
                self._add(step, self._taken(step))
            if any(row.verdict == rows.FAIL for row in self._rows):
                code = SOME_FAIL
        seconds = TOTAL_SECONDS_MAX - (self._end - monotonic())
        title = f"gpu_check: {self._summary(code)}, {seconds:.0f} s"
        rows.show(self._rows, title, sys.stdout)
        if out is not None:
            found = {"exit_code": code, "summary": title, "rows": [asdict(r) for r in self._rows]}
            out.write_text(json.dumps(found, indent=1) + "\n")
        return code

    def _summary(self, code: int) -> str:
        if code == NO_GPU:
            return "no GPU here, nothing was looked at"
        if code == USAGE:
            return "cuda.bindings is missing, nothing was looked at"
        count = {
            verdict: sum(row.verdict == verdict for row in self._rows)
            for verdict in (rows.PASS, rows.FAIL, rows.SKIPPED)
        }
        return ", ".join(f"{number} {verdict}" for verdict, number in count.items())

    def _probe(self, steps: Sequence[Step]) -> int:
        """Whether there is a GPU; without one every step is skipped, and says why."""
        found = self._taken(PROBE)
        self._add(PROBE, found)
        fault = next((row for row in found if row.verdict != rows.PASS), None)
        if fault is None:
            return ALL_PASS
        for step in steps:
            self._add(step, [rows.skipped(step.proves, f"no {fault.what}")])
        if fault.what == "cuda.bindings":
            return USAGE
        return NO_GPU if fault.verdict == rows.SKIPPED else SOME_FAIL

    def _add(self, step: Step, found: Sequence[Row]) -> None:
        self._rows += (replace(row, step=step.name) for row in found)

    def _taken(self, step: Step) -> list[Row]:
        """The rows of a step; one more if its process did not end well."""
        left = self._end - monotonic()
        if left <= 0:
            return [rows.failed(step.proves, f"no time: {TOTAL_SECONDS_MAX:g} s are over")]
        print(f"gpu_check: {step.name} ...", file=sys.stderr, flush=True)
        to = self._folder / f"{step.name}.rows"
        to.touch()
        command = [sys.executable, str(SCRIPT), "--take", step.name, "--rows-to", str(to)]
        command += (part for plan in self._options.plans for part in ("--plan", plan))
        log = self._folder / f"{step.name}.log"
        fault = self._run(command, log, min(step.seconds_max, left))
        found = [rows.from_json(line) for line in to.read_text().splitlines()]
        if fault:
            said = log.read_text(errors="replace").strip().splitlines()[-LAST_WORDS_LINES:]
            found.append(rows.failed(step.proves, f"{fault}: {' | '.join(said)}"))
        elif not found:
            found.append(rows.failed(step.proves, "the step made no row"))
        return found

    def _run(self, command: list[str], log: Path, seconds: float) -> str:
        """Run a step, and end all it started; what went wrong, or nothing."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=self._environment, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return f"not done within {seconds:.0f} s"
            finally:
                with suppress(ProcessLookupError):  # nothing of it is left
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _sweep(process.pid)
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}" if code else ""


def _sweep(pid: int) -> None:
    """Remove what a process that was killed could not."""
    for left in Path(SHM).glob(f"{SEGMENT_PREFIX}{pid}-*"):
        left.unlink(missing_ok=True)

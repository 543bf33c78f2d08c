"""The script: every step in a process of its own, within its time; then the table, and the verdict.

Looks at no GPU itself, so that whatever a step does to its process, the others are looked at. Until
a step is taken nothing but the standard library is needed.
"""

from __future__ import annotations

import io
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
from types import FrameType
from typing import Final, NoReturn

from gpu_checks import rows, segments, wheels
from gpu_checks.arguments import parsed
from gpu_checks.device import NEEDED
from gpu_checks.rows import Row
from gpu_checks.steps import PROBE, STEPS, Options, Step, take

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = ROOT / "scripts" / "gpu_check"
TOTAL_SECONDS_MAX: Final = 480.0
"""Of the script, from its first line to its last."""
END_SECONDS_MAX: Final = 10.0
"""Of that, for ending the last step and for the table."""
KILL_SECONDS_MAX: Final = 4.0
"""For a killed process to be gone; one that hangs in the driver is left behind."""
LAST_WORDS_LINES: Final = 3

ALL_PASS: Final = 0
SOME_FAIL: Final = 1
USAGE: Final = 2
NO_GPU: Final = 3
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    end = monotonic() + TOTAL_SECONDS_MAX - END_SECONDS_MAX
    given = parsed(arguments)
    options = Options(tuple(map(str, given.plan)))
    if given.take:
        take(given.take, options, given.rows_to)
        return ALL_PASS
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show the table's lines
    try:
        with tempfile.TemporaryDirectory(prefix="naiad-gpu-check-") as folder:
            environment = dict(os.environ)
            if given.wheels is not None:
                _use_wheels(given.wheels, Path(folder, "site"), environment)
            return _Run(options, environment, Path(folder), end).all(given.steps, given.out)
    except (OSError, ValueError) as error:
        _say(str(error))
        return USAGE
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


def _say(text: str) -> None:
    """Nobody may be listening any more."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"gpu_check: {text}", file=sys.stderr, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _use_wheels(folder: Path, site: Path, environment: dict[str, str]) -> None:
    try:
        names = wheels.unpack(folder, site)
    except (OSError, ValueError) as error:
        raise ValueError(f"--wheels: {error}") from error
    _say(f"{len(names)} wheels of {folder}")
    known = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), known)))


class _Run:
    def __init__(
        self, options: Options, environment: dict[str, str], folder: Path, end: float
    ) -> None:
        self._options = options
        self._environment = environment
        self._folder = folder
        self._begin = monotonic()
        self._end = end
        self._rows: list[Row] = []

    def all(self, names: Sequence[str], out: Path | None) -> int:
        steps = [step for step in STEPS if step.name in names]
        try:
            code = self._steps(steps)
        except KeyboardInterrupt:
            code = INTERRUPTED
        title = f"gpu_check: {self._summary(code)}, {monotonic() - self._begin:.0f} s"
        if not self._shown(title):
            code = code or SOME_FAIL
        if out is not None and not self._written(out, code, title):
            code = code or SOME_FAIL
        return code

    def _steps(self, steps: Sequence[Step]) -> int:
        code = self._probe(steps)
        if code == ALL_PASS:
            for step in steps:
                self._add(step, self._taken(step))
            if any(row.verdict == rows.FAIL for row in self._rows):
                code = SOME_FAIL
        return code

    def _shown(self, title: str) -> bool:
        if sys.stdout is None:  # closed before the start
            _say("the table cannot be shown: there is no stdout")
            return False
        try:
            rows.show(self._rows, title, sys.stdout)
            sys.stdout.flush()
        except OSError as error:
            _say(f"the table cannot be shown: {error}")
            with suppress(OSError, ValueError):  # what is left must not fail at the very end again
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False
        return True

    def _written(self, out: Path, code: int, title: str) -> bool:
        found = {"exit_code": code, "summary": title, "rows": [asdict(r) for r in self._rows]}
        try:
            out.write_text(json.dumps(found, indent=1) + "\n")
        except OSError as error:
            _say(f"--out: {error}")
            return False
        return True

    def _summary(self, code: int) -> str:
        if code == NO_GPU:
            return "no GPU here, nothing was looked at"
        if code == USAGE:
            return "a package is missing, nothing was looked at"
        count = {
            verdict: sum(row.verdict == verdict for row in self._rows)
            for verdict in (rows.PASS, rows.FAIL, rows.SKIPPED)
        }
        said = ", ".join(f"{number} {verdict}" for verdict, number in count.items())
        return f"interrupted: {said}" if code == INTERRUPTED else said

    def _probe(self, steps: Sequence[Step]) -> int:
        """Whether there is a GPU; without one every step is skipped, and says why."""
        found = self._taken(PROBE)
        self._add(PROBE, found)
        fault = next((row for row in found if row.verdict != rows.PASS), None)
        if fault is None:
            return ALL_PASS
        for step in steps:
            self._add(step, [rows.skipped(step.proves, f"no {fault.what}")])
        if fault.what in NEEDED:
            return USAGE
        return NO_GPU if fault.verdict == rows.SKIPPED else SOME_FAIL

    def _add(self, step: Step, found: Sequence[Row]) -> None:
        self._rows += (replace(row, step=step.name) for row in found)

    def _taken(self, step: Step) -> list[Row]:
        """The rows of a step; one more if its process did not end well."""
        left = self._end - monotonic()
        if left <= 0:
            reason = f"no time left of the {TOTAL_SECONDS_MAX:g} s of all (TOTAL_SECONDS_MAX)"
            return [rows.failed(step.proves, reason)]
        _say(f"{step.name} ...")
        try:
            return self._rows_of(step, min(step.seconds_max, left))
        except OSError as error:  # no process, no room: the next step may have more luck
            return [rows.failed(step.proves, f"it could not be taken: {error}")]

    def _rows_of(self, step: Step, seconds: float) -> list[Row]:
        to = self._folder / f"{step.name}.rows"
        to.touch()
        command = [sys.executable, str(SCRIPT), "--take", step.name, "--rows-to", str(to)]
        command += (part for plan in self._options.plans for part in ("--plan", plan))
        log = self._folder / f"{step.name}.log"
        fault = self._run(command, log, seconds)
        found = _whole_rows(to.read_text(errors="replace"))
        if fault:
            found.append(rows.failed(step.proves, f"{fault}: {_last_words(log)}"))
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
            late = ""
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code, late = 0, f"not done within {seconds:.0f} s"
            finally:
                is_gone = _ended(process)
        if not is_gone:
            left = f"could not be killed within {KILL_SECONDS_MAX:g} s (KILL_SECONDS_MAX)"
            return f"{late or 'its process ended'}, and what it started {left}"
        if late:
            return late
        if code < 0:
            return f"its process was ended by {_signal_name(-code)}"
        return f"its process ended with exit code {code}" if code else ""


def _signal_name(number: int) -> str:
    """Also of those that have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(log: Path) -> str:
    if not log.exists():
        return "it said nothing"
    said = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(said[-LAST_WORDS_LINES:])


def _whole_rows(text: str) -> list[Row]:
    """Those of a step, without one that its process was killed in the middle of."""
    return [rows.from_json(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Nothing of it is left, or it hangs in the kernel, where no signal reaches it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return False
    segments.sweep(process.pid)
    return True

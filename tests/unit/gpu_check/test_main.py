"""The script's own work: time, rows of steps that died, and an exit code that is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from gpu_checks import rows
from gpu_checks.main import (
    END_SECONDS_MAX,
    INTERRUPTED,
    KILL_SECONDS_MAX,
    SOME_FAIL,
    TOTAL_SECONDS_MAX,
    _Run,
    main,
)
from gpu_checks.steps import Options
from support.chaos import is_alive
from support.waiting import wait_until

GOOD = rows.told("a", 1.0, "s")


def run(folder: Path, seconds: float = 60.0) -> _Run:
    return _Run(Options(), dict(os.environ), folder, monotonic() + seconds)


def spoken(command: str) -> list[str]:
    return ["sh", "-c", command]


class Steps:
    """Stands for the processes of all steps: what one writes to its file of rows, and its fault."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, written: str, fault: str = "") -> None:
        self.taken: list[str] = []
        self.seconds: list[float] = []
        self._written, self._fault = written, fault
        monkeypatch.setattr(_Run, "_run", self._run)

    def _run(self, command: list[str], log: Path, seconds: float) -> str:
        self.taken.append(command[command.index("--take") + 1])
        self.seconds.append(seconds)
        Path(command[command.index("--rows-to") + 1]).write_text(self._written)
        return self._fault if len(self.taken) > 1 else ""


def test_the_end_of_all_is_kept_by_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps(monkeypatch, GOOD.to_json() + "\n")
    assert KILL_SECONDS_MAX < END_SECONDS_MAX < TOTAL_SECONDS_MAX
    assert run(tmp_path, 7.0).all(["ipc"], None) == 0
    assert all(seconds <= 7.0 for seconds in steps.seconds)
    assert run(tmp_path, 0.0).all(["ipc"], None) == SOME_FAIL
    assert steps.taken == ["device", "ipc"]
    assert "no time left of the 480 s of all (TOTAL_SECONDS_MAX)" in " ".join(
        capsys.readouterr().out.replace("│", " ").split()
    )


def test_a_row_that_was_cut_off_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = GOOD.to_json() + "\n"
    steps = Steps(monkeypatch, whole + whole[:-9], fault="its process was ended by SIGKILL")
    out = tmp_path / "out"
    assert run(tmp_path).all(["register", "ipc"], out) == SOME_FAIL
    assert steps.taken == ["device", "register", "ipc"]
    told = json.loads(out.read_text())
    assert [row["verdict"] for row in told["rows"]] == ["pass", "pass", "fail", "pass", "fail"]
    assert told["exit_code"] == SOME_FAIL


def test_a_step_that_cannot_be_started_is_a_failed_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(_Run, "_run", refuse)
    out = tmp_path / "out"
    assert run(tmp_path).all(["ipc"], out) == SOME_FAIL
    first, second = json.loads(out.read_text())["rows"]
    assert first["reason"].startswith("it could not be taken: [Errno 11]")
    assert second["verdict"] == "skipped"


def test_rows_that_cannot_be_written_are_shown_and_not_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Steps(monkeypatch, GOOD.to_json() + "\n")
    assert run(tmp_path).all(["ipc"], tmp_path / "gone" / "out") == SOME_FAIL
    out, err = capsys.readouterr()
    assert "--out: [Errno 2]" in err
    assert "ipc" in out


def test_an_interruption_shows_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: _Run, command: list[str], log: Path, seconds: float) -> str:
        if command[command.index("--take") + 1] == "rates":
            raise KeyboardInterrupt
        Path(command[command.index("--rows-to") + 1]).write_text(GOOD.to_json() + "\n")
        return ""

    monkeypatch.setattr(_Run, "_run", interrupt)
    assert run(tmp_path).all(["register", "ipc", "rates"], None) == INTERRUPTED
    said = " ".join(capsys.readouterr().out.split())
    assert "gpu_check: interrupted: 2 pass, 0 fail, 0 skipped" in said


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_leaves_no_folder_and_no_step(tmp_path: Path, number: signal.Signals) -> None:
    """The step says its process id, and sleeps."""
    told = tmp_path / "told"
    code = (
        "import os, signal, sys; from gpu_checks import main\n"
        f"signal.signal(signal.SIGINT, signal.default_int_handler); told = {str(told)!r}\n"
        "def started(self, command, log, seconds, run=main._Run._run):\n"
        "    spoken = f'echo $$ > {told}.new; mv {told}.new {told}; sleep 60'\n"
        "    return run(self, ['sh', '-c', spoken], log, seconds)\n"
        "main._Run._run = started\n"
        "sys.exit(main.main(['--only', 'ipc']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) as script:
        wait_until(told.exists, "the step")
        script.send_signal(number)
        out, err = script.communicate(timeout=30)
    assert (script.returncode, b"interrupted" in out) == (INTERRUPTED, True), err
    assert [path.name for path in tmp_path.iterdir()] == ["told"]
    step = int(told.read_text())
    wait_until(lambda: not is_alive(step), "the end of the step")


def test_who_is_to_survive_a_hangup_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    monkeypatch.setattr(_Run, "all", lambda self, names, out: 0)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        assert main(["--only", "ipc"]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("closed", ["> /dev/full", "| true", ">&- 2>&-"])
def test_a_table_that_cannot_be_shown_is_no_traceback(tmp_path: Path, closed: str) -> None:
    out, code = tmp_path / "rows.json", tmp_path / "code"
    script = Path(__file__).parents[3] / "scripts" / "gpu_check"
    inner = f"(sleep 0.1; {sys.executable} {script} --only ipc --out {out}; echo $? > {code})"
    ran = subprocess.run(["sh", "-c", f"{inner} {closed}"], stderr=subprocess.PIPE, timeout=60)
    assert b"Traceback" not in ran.stderr
    assert b"Exception" not in ran.stderr
    found = json.loads(out.read_text())
    assert int(code.read_text()) == found["exit_code"] != 0


def test_a_table_that_cannot_be_shown_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Steps(monkeypatch, GOOD.to_json() + "\n")
    monkeypatch.setattr("sys.stdout", None)
    assert run(tmp_path).all(["ipc"], tmp_path / "out") == SOME_FAIL
    assert "gpu_check: the table cannot be shown" in capsys.readouterr().err


def test_how_a_process_ended(tmp_path: Path) -> None:
    at, log = run(tmp_path), tmp_path / "log"
    assert at._run(spoken("true"), log, 10.0) == ""
    assert at._run(spoken("exit 3"), log, 10.0) == "its process ended with exit code 3"
    nameless = signal.SIGRTMIN + 1
    killed = at._run(spoken(f"kill -{nameless} $$"), log, 10.0)
    assert killed == f"its process was ended by signal {nameless}"


def test_a_process_that_no_signal_reaches_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that hangs in the driver."""
    started: list[subprocess.Popen[bytes]] = []

    class Hanging(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None, "a wait without an end"
            started.append(self)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", Hanging)
    fault = run(tmp_path)._run(spoken("exit 0"), tmp_path / "log", 1.0)
    assert fault.startswith("not done within 1 s, and what it started could not be killed within 4")
    monkeypatch.undo()
    subprocess.Popen.wait(started[0], 10.0)

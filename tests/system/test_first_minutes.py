"""What goes wrong in a person's first minutes: one helpful sentence, the right code, no rubbish."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.cli.main import COMMANDS
from support.repositories import add_identity

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_SECONDS = 30.0


class Person:
    """Types commands in a folder of their own, with a run directory that must be clean after."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.started: list[subprocess.Popen[str]] = []
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "NAIAD_RUN_DIR": str(self.run_dir),
            "NAIAD_HTTP_PORT": "0",  # 8000 may be somebody else's
            "NAIAD_GRPC_PORT": "0",
            "NAIAD_METRICS_PORT": "0",
        }

    def types(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "naiad", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )

    def starts(self, *arguments: str) -> subprocess.Popen[str]:
        """In a process group of its own, as a shell does, so that Ctrl-C can be sent to it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "naiad", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.started.append(process)
        return process

    def leaves(self) -> None:
        """End what a failed test has left running."""
        for process in self.started:
            with process:
                if process.poll() is None:
                    process.kill()

    def leftovers(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
            except OSError:
                continue
            if str(self.folder).encode() in words:
                found.append(words.decode())
        return found + [str(path) for path in self.folder.rglob("*.sock")]


@pytest.fixture
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    person = Person(tmp_path_factory.mktemp("p"))
    yield person
    person.leaves()
    assert person.leftovers() == []


def test_naiad_alone(person: Person) -> None:
    run = person.types()
    assert run.returncode == 0
    assert "naiad serve" in run.stdout
    assert run.stderr == ""


LONG_HELP = ("build", "tritonserver")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in LONG_HELP])
def test_help_is_short_and_has_an_example(person: Person, command: str) -> None:
    run = person.types(command, "--help")
    assert run.returncode == 0
    assert run.stdout.count("\n") <= 45
    _, _, after = run.stdout.lower().partition("options:")
    assert f"naiad {command} " in after, "an example after the options"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere", "there is no {}/nowhere"),
        ("file", "{}/file is a file"),
        ("repository/model", "{}/repository/model is the folder of one model"),
        ("empty", "no model in {}/empty"),
    ],
)
def test_a_path_that_is_no_repository(person: Person, given: str, said: str) -> None:
    (person.folder / "file").touch()
    (person.folder / "empty").mkdir()
    add_identity(person.folder / "repository", "model")
    run = person.types("serve", given)
    assert run.returncode == ExitCode.USAGE
    (line,) = run.stderr.splitlines()
    assert line.startswith("naiad: " + said.format(person.folder))
    assert run.stdout == ""


def test_a_run_directory_that_cannot_be(person: Person) -> None:
    add_identity(person.folder / "repository")
    run = person.types("serve", "repository", "--run-dir", "/proc/naiad")
    assert run.returncode == ExitCode.RUN_DIR
    (line,) = run.stderr.splitlines()
    assert line.startswith("naiad: cannot use run directory /proc/naiad: ")
    assert "choose another --run-dir" in line


def test_a_log_file_that_cannot_be(person: Person) -> None:
    add_identity(person.folder / "repository")
    run = person.types("serve", "repository", "--log-file", "nowhere/log")
    assert run.returncode == ExitCode.USAGE
    assert run.stderr == ("naiad: cannot write --log-file nowhere/log: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--http-address", "192.0.2.1"],
            "cannot listen on 192.0.2.1: this machine has no such address; choose another",
        ),
        (
            ["--metrics-address", "192.0.2.1"],
            "cannot listen on 192.0.2.1: this machine has no such address; choose another",
        ),
        (
            ["--log-file", "no/log"],
            "cannot write --log-file no/log: No such file or directory",
        ),
    ],
)
def test_a_start_that_fails_leaves_no_run_directory(
    person: Person, arguments: list[str], said: str
) -> None:
    add_identity(person.folder / "repository")
    run = person.types("serve", "repository", *arguments)
    assert run.returncode in (ExitCode.PORT, ExitCode.USAGE)
    assert run.stderr == f"naiad: {said}\n"
    assert not person.run_dir.exists()


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["infer", "m", "--input", "X=1"], ["load", "m"], ["unload", "m"]],
)
def test_no_server_is_there(person: Person, arguments: list[str]) -> None:
    run = person.types(*arguments)
    assert run.returncode == ExitCode.NO_SERVER
    assert run.stderr == (
        f"naiad: no server runs in {person.run_dir}; start one with `naiad serve REPOSITORY`, or "
        "name its --run-dir (or --name)\n"
    )


def test_check_finds_the_same_faults_without_serving(person: Person) -> None:
    add_identity(person.folder / "good", "m")
    assert person.types("check", "good").returncode == ExitCode.DONE
    model = add_identity(person.folder / "bad", "m")
    (model / "config.pbtxt").write_text('name: "m"\nbackend: "identity"\nmax_batch_size: many\n')
    run = person.types("check", "bad")
    assert run.returncode == ExitCode.FAILED
    assert re.search(r"config\.pbtxt:3:\d+", run.stdout)
    assert person.types("check", "nowhere").returncode == ExitCode.USAGE


def test_a_model_with_faults_does_not_stop_the_others(person: Person) -> None:
    add_identity(person.folder / "repository", "good")
    bad = add_identity(person.folder / "repository", "bad")
    (bad / "config.pbtxt").write_text('name: "bad"\nbackend: "identity"\nmax_batch_size: many\n')
    process = person.starts("serve", "repository")
    assert process.stderr is not None
    lines = read_until(process, "listening on ")
    assert f"listening on {person.run_dir} (1 of 2 models failed)" in lines[-1]
    assert any("bad" in line and "config.pbtxt:3:" in line for line in lines)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == ExitCode.DONE


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Lines of stderr up to the one with the text."""
    assert process.stderr is not None
    end = time.monotonic() + DEADLINE_SECONDS
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
        assert time.monotonic() < end, lines
    raise AssertionError(f"it ended without {text!r}: {''.join(lines)}")


def test_ctrl_c_during_a_load_ends_everything(person: Person) -> None:
    add_identity(person.folder / "repository", parameters={"load_ms": 600_000})
    process = person.starts("serve", "repository", "--drain-seconds", "1")
    wait_for_loading(person)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert time.monotonic() - began < 10
    assert process.returncode in (ExitCode.DONE, ExitCode.DRAIN_TIMED_OUT)


def wait_for_loading(person: Person) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while "LOADING" not in person.types("status").stdout:
        assert time.monotonic() < end


def test_a_second_ctrl_c_does_not_wait(person: Person) -> None:
    add_identity(person.folder / "repository", parameters={"load_ms": 600_000})
    process = person.starts("serve", "repository", "--drain-seconds", "600")
    wait_for_loading(person)
    os.killpg(process.pid, signal.SIGINT)
    read_until(process, "SIGINT: draining")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == ExitCode.INTERRUPTED

"""Commands whose stdin, stdout or stderr is closed, full, or of an encoding that holds little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.cli.exit_codes import ExitCode
from support.repositories import add_identity

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    add_identity(repository, "模型")
    return repository


def shell(line: str, repository: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -W error -m naiad {line}'],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        timeout=60,
    )


@pytest.mark.parametrize("line", ["--help >&-", "check . >&-", "check . <&-", "check . 2>&-"])
def test_a_closed_stream_is_nobodys_concern(repository: Path, line: str) -> None:
    run = shell(line, repository)
    assert (run.returncode, run.stderr) == (ExitCode.DONE, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["--help", "check .", "check --json .", ""])
def test_a_full_disk_under_stdout_is_one_sentence(
    repository: Path, line: str, unbuffered: str
) -> None:
    run = shell(f"{line} >/dev/full", repository, PYTHONUNBUFFERED=unbuffered)
    assert run.returncode == ExitCode.FAILED
    assert run.stderr == b"naiad: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("end", ["2>/dev/full", "2>&-"])
def test_an_error_that_cannot_be_told_keeps_its_exit_code(repository: Path, end: str) -> None:
    run = shell(f"status --run-dir nowhere {end}", repository)
    assert (run.returncode, run.stdout, run.stderr) == (ExitCode.NO_SERVER, b"", b"")


def test_a_closed_stderr_is_not_the_next_file_that_is_opened(
    repository: Path, tmp_path: Path
) -> None:
    run = shell(f"serve nowhere --run-dir {tmp_path}/run --log-file {tmp_path}/log 2>&-", tmp_path)
    assert run.returncode == ExitCode.USAGE
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("encoding", ["latin1", "latin1:strict", "utf-8:strict"])
def test_names_that_the_encoding_lacks_are_spelled_out(repository: Path, encoding: str) -> None:
    run = shell("check .", repository, PYTHONIOENCODING=encoding)
    assert (run.returncode, run.stderr) == (ExitCode.DONE, b"")
    name = "模型".encode() if encoding.startswith("utf") else rb"\u6a21\u578b"
    assert run.stdout.startswith(name + b": ok")

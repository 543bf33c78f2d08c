"""scripts/setup on machines that lack something: one sentence says what, nothing is half done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ("bash", "dirname", "cksum", "tail", "head", "rm", "tee", "cat", "grep")


class Machine:
    """A checkout of scripts/setup in a path with a space, and a PATH with chosen tools only."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "a checkout"
        (self.checkout / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup", self.checkout / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.checkout)
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            path = shutil.which(tool)
            assert path is not None, tool
            (self.bin / tool).symlink_to(path)

    def add_python(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.checkout / "scripts" / "setup"), *arguments],
            capture_output=True,
            text=True,
            env={"PATH": str(self.bin), "HOME": str(self.checkout), **environment},
            timeout=300,
        )

    def refuses(self, said: str, *arguments: str, **environment: str) -> None:
        run = self.setup(*arguments, **environment)
        assert run.returncode == 1
        assert said in run.stderr.splitlines()[-1]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_python(machine: Machine) -> None:
    machine.refuses("no Python 3.11, 3.12 or 3.13 on PATH (found: none); apt-get install python3")


def test_python_too_old_and_too_new(machine: Machine) -> None:
    machine.add_python("python3", "echo 3.9")
    machine.refuses("(found: python3=3.9)")
    newer = machine.add_python("python3.14", "echo 3.14")
    machine.refuses("is Python 3.14; naiad needs 3.11, 3.12 or 3.13", PYTHON=str(newer))
    machine.refuses("PYTHON=nowhere does not run", PYTHON="nowhere")
    assert not (machine.checkout / ".venv").exists()


def test_a_python_without_venv(machine: Machine) -> None:
    script = f'case "$*" in *venv*) exit 1 ;; esac\nexec "{sys.executable}" "$@"'
    machine.add_python("python3", script)
    machine.refuses("has no venv module; on Debian and Ubuntu: apt-get install python3-venv")


def test_an_unknown_extra(machine: Machine) -> None:
    machine.refuses("expected demo or dev, got everything", "everything")


def test_no_network(machine: Machine) -> None:
    nobody = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }
    said = "could not reach the Python package index: this step needs the network"
    machine.refuses(said, "demo", PYTHON=sys.executable, **nobody)
    assert not (machine.checkout / ".venv" / "complete-demo").exists()


def test_a_complete_environment_is_left_alone(machine: Machine) -> None:
    """With the stamps of a finished run nothing is installed: nothing could be, without pip."""
    venv = machine.checkout / ".venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    checksum = subprocess.run(
        ["cksum"], input=(ROOT / "pyproject.toml").read_bytes(), capture_output=True, check=True
    ).stdout.decode()
    stamp = f"{machine.checkout}\n{sys.version}\n{checksum}"
    (venv.parent / "complete-dev").write_text(stamp)
    for extra in ("dev", "demo"):
        run = machine.setup(extra)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")

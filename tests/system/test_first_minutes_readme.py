"""The README's ten lines, typed as they stand: files written, served, asked, answers compared."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.testing.server import Server, serve

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
FILE = re.compile(r"`(models/[^`]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)
CONSOLE = re.compile(r"^\$ (naiad infer [^\n]+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"or from Python:\n\n```python\n(.*?)```", re.DOTALL)
CURL = re.compile(r"^\$ curl localhost:8000(\S+) -d '([^']+)'\n(.*)$", re.MULTILINE)
WAITING = re.compile(r"`curl -sf --retry 60 [^`]*--retry-all-errors localhost:8000(\S+)`")
RUN_DIR = "/tmp/double"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="naiad-readme-"))
    files = FILE.findall(README)
    assert len(files) == 2, "a config and a model"
    for name, text in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with serve(folder / "models", arguments=["--http-port", "0"]) as running:
        yield running
    shutil.rmtree(folder)


def run(command: list[str], server: Server) -> str:
    home = str(ROOT / "src")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": home, "PATH": ""}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_question_on_the_command_line(server: Server) -> None:
    ((line, expected),) = CONSOLE.findall(README)
    shell = line.replace(RUN_DIR, str(server.run_dir)).replace("naiad", "-m naiad", 1)
    assert run(["/bin/sh", "-c", f"'{sys.executable}' {shell}"], server) == expected


def test_the_question_by_curl(server: Server) -> None:
    ((path, body, expected),) = CURL.findall(README)
    with urllib.request.urlopen(f"{server.http_url}{path}", body.encode()) as answer:
        assert answer.read().decode() == expected


def test_the_way_to_wait(server: Server) -> None:
    (path,) = WAITING.findall(README)
    with urllib.request.urlopen(f"{server.http_url}{path}") as answer:
        assert answer.status == 200


def test_the_question_from_python(server: Server) -> None:
    (code,) = PYTHON.findall(README)
    code = code.replace(RUN_DIR, str(server.run_dir))
    assert run([sys.executable, "-c", code], server) == "[[2. 5.]]\n"

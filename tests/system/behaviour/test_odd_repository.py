"""Whatever lies in a repository beside the models is told, by `check` and `serve` alike, and the
models are served."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.client import Client
from naiad.testing.server import Server, serve
from support.models import add_echo
from support.waiting import wait_until

ARRAYS = {"INPUT0": np.arange(16, dtype=np.float32)}
LONG = "é" * 127 + "x"
"""As long as a name in a directory can be, in bytes."""
ODD = {
    "bytes\\xff": "is not UTF-8",
    "two\\nlines": "must not contain control characters",
    "\\x1b[31mred": "must not contain control characters",
    "gone": "is a link to nothing ('/nowhere')",
    "loop_a": "is a link that leads in a circle ('loop_b')",
    "loop_b": "is a link that leads in a circle ('loop_a')",
    "config_is_a_pipe": "config.pbtxt: expected a file, but it is a named pipe",
    "config_is_a_directory": "config.pbtxt: expected a file, but it is a directory",
    "config_is_a_loop": "config.pbtxt: expected a file, but it is a link that leads in a circle",
    "config_is_huge": "bytes, expected at most",
    "version_is_a_loop": "version 1 is a link that leads in a circle",
}
NOTES = {"pipe": "a named pipe", "socket": "a socket", "device": "a device"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    for name in ("echo", "bytes\udcff", "two\nlines", "\x1b[31mred", "version_is_a_loop"):
        add_echo(repository, "echo").rename(repository / name)
    for name in ("echo", LONG):
        add_echo(repository, name)
    (repository / "gone").symlink_to("/nowhere")
    (repository / "loop_a").symlink_to("loop_b")
    (repository / "loop_b").symlink_to("loop_a")
    for name in ("pipe", "directory", "loop"):
        (repository / f"config_is_a_{name}" / "1").mkdir(parents=True)
    os.mkfifo(repository / "config_is_a_pipe" / "config.pbtxt")
    (repository / "config_is_a_directory" / "config.pbtxt").mkdir()
    (repository / "config_is_a_loop" / "config.pbtxt").symlink_to("config.pbtxt")
    (repository / "config_is_huge" / "1").mkdir(parents=True)
    (repository / "config_is_huge" / "config.pbtxt").touch()
    os.truncate(repository / "config_is_huge" / "config.pbtxt", 1 << 40)
    (repository / "version_is_a_loop" / "1").rmdir()
    (repository / "version_is_a_loop" / "1").symlink_to("1")
    (repository / "echo" / "loop").symlink_to("loop")
    (repository / "README").write_text("a file is no model")
    os.mkfifo(repository / "pipe")
    (repository / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as one:
        # A socket's path is short: bind it from where it is to be.
        here = os.open(repository, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with serve(repository) as server:
        yield server


def reasons(client: Client) -> dict[str, str]:
    return {row["name"]: row["reason"] for row in client.index() if row["state"] == "UNAVAILABLE"}


def naiad(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "naiad", *arguments],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env={**os.environ, **environment},
        timeout=60,
    )


def test_the_models_are_served_and_every_odd_thing_has_its_reason(
    client: Client, server: Server
) -> None:
    for name in ("echo", LONG):
        assert (client.infer(name, ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    found = reasons(client)
    assert sorted(found) == sorted(ODD)
    for name, said in ODD.items():
        assert said in found[name], found[name]
    for name, kind in NOTES.items():
        assert f"/{name}': it is {kind}, expected a directory" in server.log
    assert "Traceback" not in server.log


@pytest.mark.parametrize("environment", [{}, {"LC_ALL": "C.UTF-8"}, {"PYTHONUTF8": "0"}])
def test_check_says_what_serve_says(
    client: Client, repository: Path, environment: dict[str, str]
) -> None:
    run = naiad("check", "--json", str(repository), **environment)
    assert run.returncode == ExitCode.FAILED
    found: dict[str, Any] = json.loads(run.stdout)
    faults = {row["name"]: "; ".join(row["faults"]) for row in found["models"] if row["faults"]}
    assert faults == reasons(client)

    shown = naiad("check", str(repository), **environment)
    assert shown.returncode == ExitCode.FAILED
    assert f"{len(ODD) + 2} models, {len(ODD)} with faults" in shown.stdout
    assert "echo: ok" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert shown.stderr == ""


def test_a_repository_that_is_odd_itself_is_refused_with_one_sentence(
    repository: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "bytes\udcff").symlink_to(repository)
    for name in ("pipe", "loop", "bytes\udcff", "nowhere"):
        for command in (["check"], ["serve", "--run-dir", str(tmp_path / "run")]):
            run = naiad(*command, str(tmp_path / name))
            assert run.returncode == ExitCode.USAGE
            assert run.stderr.count("\n") == 1
            assert run.stderr.startswith("naiad: ")


def test_an_argument_that_is_not_utf8_is_refused_with_one_sentence(server: Server) -> None:
    for command in (["load", "m\udcff"], ["unload", "m\udcff"]):
        run = naiad(*command, "--run-dir", str(server.run_dir))
        assert run.returncode == ExitCode.FAILED
        assert "is not UTF-8" in run.stderr
        assert run.stderr.count("\n") == 1
    run = naiad("status", "--run-dir", f"{server.run_dir}\udcff")
    assert run.returncode == ExitCode.RUN_DIR
    assert run.stderr.count("\n") == 1


def test_the_models_outlive_the_broker(client: Client, server: Server) -> None:
    broker = server.pids["broker"]
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: server.pids.get("broker", broker) != broker, "a new broker")
    for name in ("echo", LONG):
        assert (client.infer(name, ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()

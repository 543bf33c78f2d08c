"""The supervisord.conf of the root under the real supervisord: deaths under load, and the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from naiad.client import Client
from support.repositories import add_identity

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_SECONDS = 40.0
BACK_SECONDS_MAX = 8.0
"""Below 1 s on a quiet machine; a busy one starts a Python process in seconds."""
CONFIGURATION = ["-c", str(ROOT / "supervisord.conf")]


class Supervisord:
    """A supervisord with a path with a space in everything it is given."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run dir"
        self.run_dir.mkdir(mode=0o700)
        repository = folder / "models here"
        add_identity(repository, "echo", instances=2)
        bin_dir = folder / "bin"
        bin_dir.mkdir()
        naiad = bin_dir / "naiad"
        naiad.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m naiad \"$@\"\n")
        naiad.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "NAIAD_REPOSITORY": str(repository),
            "NAIAD_RUN_DIR": str(self.run_dir),
            "NAIAD_CPU_SLOTS": "3",
            "NAIAD_HTTP_PORT": "0",
            "NAIAD_GRPC_PORT": "0",
            "NAIAD_METRICS_PORT": "0",  # nobody else's
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "supervisor.supervisord",
                    "-c",
                    str(ROOT / "supervisord.conf"),
                ],
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def control(self, *words: str) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisorctl", *CONFIGURATION, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        return run.stdout

    def is_ready(self) -> bool:
        """Both instances serve."""
        run = subprocess.run(
            [sys.executable, "-m", "naiad", "status", "--json", "--run-dir", str(self.run_dir)],
            env=self.environment,
            capture_output=True,
        )
        if run.returncode != 0:
            return False
        return [row["state"] for row in json.loads(run.stdout)["instances"]].count("READY") == 2

    def logs(self) -> str:
        """What broker and workers have said."""
        return "\n".join(path.read_text() for path in self.run_dir.glob("*.log"))

    def processes(self, word: str) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if word in command_line(child)]


def command_line(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return []
    return words


class Load:
    """Keeps eight requests in flight, checks each answer, notes the longest pause between two."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.answered = 0
        self.longest_pause_s = 0.0
        self.fault: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            number, last = 0, time.monotonic()
            while not self._stopping.is_set():
                asked = []
                for _ in range(8):
                    number += 1
                    values = np.full((1, 16), number, np.float32)
                    asked.append((number, self.client.submit("echo", {"INPUT0": values})))
                for expected, future in asked:
                    assert (future.result()["OUTPUT0"] == expected).all()
                now = time.monotonic()
                self.longest_pause_s = max(self.longest_pause_s, now - last)
                self.answered, last = self.answered + 8, now
        except BaseException as fault:
            self.fault = fault

    def more(self) -> None:
        """Wait for a hundred more answers."""
        goal = self.answered + 100
        until(lambda: self.answered >= goal or self.fault, "a hundred more answers")
        if self.fault is not None:
            raise self.fault

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self.fault is not None:
            raise self.fault


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, checked every 20 ms, at most DEADLINE_SECONDS."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def supervisord() -> Iterator[Supervisord]:
    folder = Path(tempfile.mkdtemp(prefix="naiad sd "))
    running = Supervisord(folder)
    yield running
    left = []
    if running.process.poll() is None:
        left = psutil.Process(running.process.pid).children(recursive=True)
        running.process.terminate()
        running.process.wait(DEADLINE_SECONDS)
    _, alive = psutil.wait_procs(left, timeout=5)
    for process in alive:
        process.kill()
    shutil.rmtree(folder)
    assert alive == []


def test_deaths_under_load_lose_nothing_and_stop_all_leaves_nothing(
    supervisord: Supervisord,
) -> None:
    until(supervisord.is_ready, "the model")
    with Client(str(supervisord.run_dir), connect_timeout_s=DEADLINE_SECONDS) as client:
        load = Load(client)
        try:
            load.more()
            for what in ("cpu-0", "cpu-1", "broker"):
                load.longest_pause_s = 0.0
                supervisord.processes(what)[0].send_signal(signal.SIGKILL)
                load.more()
                assert load.longest_pause_s < BACK_SECONDS_MAX, f"after the death of {what}"
        finally:
            load.stop()
    everybody = supervisord.processes("worker") + supervisord.processes("broker")
    assert "ERROR" not in supervisord.control("stop", "all")
    _, alive = psutil.wait_procs(everybody, timeout=5)
    assert alive == []
    assert list(supervisord.run_dir.glob("[cw]*.sock")) == []
    assert "draining" in supervisord.logs()
    assert "Traceback" not in supervisord.logs()

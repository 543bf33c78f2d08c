"""Real worker processes before a fake broker; none outlives its test, nor does a segment of its."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.fake_worker_broker import PATIENCE_S, FakeWorkerBroker

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "naiad.worker"]


@dataclass
class WorkerProcess:
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for the end; as os.waitstatus_to_exitcode."""
        return self.process.wait(PATIENCE_S)


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def broker(run_dir: str) -> Iterator[FakeWorkerBroker]:
    with FakeWorkerBroker(run_dir) as fake:
        yield fake


@pytest.fixture
def start(run_dir: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Start `naiad worker` with more arguments or environment; all are dead afterwards."""
    before = set(os.listdir("/dev/shm"))
    started: list[WorkerProcess] = []

    def start_worker(*arguments: str, slot: str = "s0", **environment: str) -> WorkerProcess:
        log_path = tmp_path / f"worker-{len(started)}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*COMMAND, "--run-dir", run_dir, "--slot", slot, *arguments],
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
            )
        started.append(WorkerProcess(process, log_path))
        return started[-1]

    yield start_worker
    pids = [worker.pid for worker in started]
    for worker in started:
        worker.process.kill()
        worker.process.wait()
    for name in set(os.listdir("/dev/shm")) - before:
        if any(f".worker.{pid}." in name for pid in pids):
            os.unlink(f"/dev/shm/{name}")

"""A server that is started but not waited for, so that it can be ended at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from naiad.testing.server import Server

ROOT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
GRACE_S_MAX: Final = 20.0
"""Far above what an end takes; a hang is what this is for."""
POLL_S: Final = 0.005


@contextmanager
def begun(
    repository: Path, run_dir: Path, name: str, arguments: Sequence[str] = ()
) -> Iterator[Server]:
    """`naiad serve`, from the first moment of its process; killed if it still runs at the end."""
    run_dir.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "naiad", "serve", str(repository)]
    command += ["--run-dir", str(run_dir), "--name", name]
    command += ["--http-port", "off", "--grpc-port", "off"]
    command += ["--metrics-port", "off", *arguments]
    with (run_dir / "test.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT
        )
    try:
        yield Server(process, run_dir, name)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def pass_time(seconds: float, server: Server) -> None:
    """Let it run for so long, or until it ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.process.poll() is None:
        time.sleep(POLL_S)


def ended(server: Server) -> tuple[int, float]:
    """(exit code, seconds it took) of a server that was asked to stop."""
    start = time.monotonic()
    code = server.process.wait(GRACE_S_MAX)
    return code, time.monotonic() - start

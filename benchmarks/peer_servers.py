"""Starts and stops the servers that naiad is measured against.

Owns their processes: each runs in a session of its own and is gone afterwards, children included.
Knows nothing of where they are installed: that comes from the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, Self

READY_SECONDS_MAX: Final = 90.0
STOP_SECONDS_MAX: Final = 40.0
POLL_SECONDS: Final = 0.1
VAD_MODEL_NAME: Final = "vad.onnx"


class PeerServer:
    """A server from a command; with an empty command one that runs already."""

    def __init__(self, name: str, command: str, ready_url: str, log: Path) -> None:
        self._name = name
        self._command = command
        self._ready_url = ready_url
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """0 when somebody else started it."""
        return self._process.pid if self._process else 0

    def __enter__(self) -> Self:
        if self._command:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    shlex.split(self._command), stdout=log, stderr=log, start_new_session=True
                )
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS_MAX
        while not _answers(self._ready_url):
            if self._process is not None and self._process.poll() is not None:
                code = self._process.returncode
                raise SystemExit(f"{self._name} ended with exit code {code}:\n{self._tail()}")
            if time.monotonic() > end:
                raise SystemExit(f"{self._name}: {self._ready_url} is not ready:\n{self._tail()}")
            time.sleep(POLL_SECONDS)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            print(f"{self._name} did not end within {STOP_SECONDS_MAX:g} s of SIGTERM: killed")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children it left, too
            process.wait()


class Triton(PeerServer):
    """Triton with the models of a repository."""

    def __init__(self, options: argparse.Namespace, repository: Path) -> None:
        super().__init__(
            "triton",
            options.triton_command.replace("{repository}", str(repository)),
            f"http://{options.triton_http}/v2/health/ready",
            repository.parent / "triton.log",
        )


class Mosec(PeerServer):
    """mosec with the echoes, and the speech detector when VAD_MODEL_NAME lies in the folder."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        host, _, port = options.mosec_http.partition(":")
        script = Path(__file__).resolve().parent / "peers" / "mosec_models.py"
        file = folder / VAD_MODEL_NAME
        command = [
            "env", f"VAD_MODEL={file if file.exists() else ''}", options.mosec_python, str(script),
            "--address", host, "--port", port, "--log-level", "warning",
        ]  # fmt: skip
        super().__init__(
            "mosec", shlex.join(command), f"http://{options.mosec_http}/", folder / "mosec.log"
        )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False

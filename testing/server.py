"""A real server for tests: `with serve("model_repository") as server: ...`.

Starts `naiad serve` in a run directory of its own, waits until every model has settled, and at the
end asks it to stop and checks that nothing is left: no process, no socket, nothing in /dev/shm.
Needs naiad and its client only.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import naiad
from naiad.shm.layout import PREFIX, sanitised_server

if TYPE_CHECKING:
    from naiad.client import Client

READY_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.02
LOG_LINES_SHOWN: Final = 30


class ServerFailed(AssertionError):
    """The server did not start, did not end well, or left something behind; with its last lines."""


class Server:
    """A running server. `run_dir` is what clients are given; `log` is what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], run_dir: Path, name: str) -> None:
        self.process = process
        self.run_dir = run_dir
        self.name = name
        self._clients: list[Client] = []

    @property
    def log(self) -> str:
        return (self.run_dir / "test.log").read_text(errors="replace")

    def client(self, **options: Any) -> Client:
        """A client of this server (see naiad.client.Client), closed with the server."""
        from naiad.client import Client

        client = Client(str(self.run_dir), **options)
        self._clients.append(client)
        return client

    @property
    def pids(self) -> dict[str, int]:
        """Process ids: "supervisor", "broker", those of the others by their names or slots."""
        found = {"supervisor": self.process.pid}
        for pid in _children(self.process.pid):
            words = _command_line(pid)
            if "naiad.broker" in words:
                found["broker"] = pid
            elif "naiad.gateway" in words or "naiad.metrics" in words:
                found[words[words.index("--name") + 1]] = pid
            elif "--slot" in words:
                found[words[words.index("--slot") + 1]] = pid
        return found

    @property
    def http_url(self) -> str:
        """Where it speaks HTTP: "http://127.0.0.1:PORT", open before any model is loaded."""
        found = re.search(r"^HTTP on (\S+)$", self.log, re.MULTILINE)
        if found is None:
            raise self._failed('speaks no HTTP; serve(..., arguments=["--http-port", "0"])')
        return found[1]

    @property
    def grpc_target(self) -> str:
        """Where it speaks gRPC: "127.0.0.1:PORT"; its gateway may not listen yet."""
        found = re.search(r"^gRPC on (\S+)$", self.log, re.MULTILINE)
        if found is None:
            raise self._failed('speaks no gRPC; serve(..., arguments=["--grpc-port", "0"])')
        return found[1]

    @property
    def metrics_url(self) -> str:
        """What Prometheus would ask: "http://127.0.0.1:PORT/metrics"."""
        found = re.search(r"^metrics on (\S+)$", self.log, re.MULTILINE)
        if found is None:
            raise self._failed('has no metrics; serve(..., arguments=["--metrics-port", "0"])')
        return found[1]

    def wait_ready(self, seconds: float = READY_SECONDS_MAX) -> None:
        """Until it listens. Raises ServerFailed when it ends before or takes longer."""
        end = time.monotonic() + seconds
        while f"listening on {self.run_dir} (" not in self.log:
            if self.process.poll() is not None:
                raise self._failed(f"ended with exit code {self.process.returncode} at its start")
            if time.monotonic() > end:
                raise self._failed(f"not ready within {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def stop(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Close the clients, send SIGTERM and wait; the exit code."""
        while self._clients:
            self._clients.pop().close()
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failed(f"not ended within {seconds:g} s of SIGTERM") from None

    def leftovers(self) -> list[str]:
        """What there should not be any more after `stop`."""
        here = str(self.run_dir)
        found = [
            f"process {pid}: {' '.join(words)}"
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if here in (words := _command_line(pid))
        ]
        prefix = f"{PREFIX[1:]}{sanitised_server(self.name)}."
        found += [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith(prefix)]
        return found + [str(path) for path in self.run_dir.rglob("*.sock")]

    def _failed(self, what: str) -> ServerFailed:
        tail = "\n  ".join(self.log.splitlines()[-LOG_LINES_SHOWN:])
        return ServerFailed(f"the server {what}; its last lines:\n  {tail}")


@contextmanager
def serve(
    repository: str | os.PathLike[str],
    *,
    arguments: Sequence[str] = (),
    ready_seconds: float | None = READY_SECONDS_MAX,
    environment: dict[str, str] | None = None,
) -> Iterator[Server]:
    """Serve a repository for the length of a with block.

    Args:
        repository: the folder with the models.
        arguments: further ones for `naiad serve`, e.g. ["--control-mode", "explicit"]; HTTP and
            gRPC and metrics are off unless they say otherwise; ["--http-port", "0"] takes any
            free port.
        ready_seconds: how long the models may take to load; None: they are not waited for.
        environment: variables in addition to those of this process.

    Raises ServerFailed when it does not start, does not stop with exit code 0, or leaves anything.
    A model that does not load is no failure: see `server.log` or the client.
    """
    name = f"test-{secrets.token_hex(4)}"
    run_dir = Path(tempfile.mkdtemp(prefix=f"naiad-{name}-"))
    command = [sys.executable, "-m", "naiad", "serve", os.fspath(repository)]
    # Without ports unless they are asked for: tests that run side by side must not fight for them.
    command += ["--run-dir", str(run_dir), "--name", name]
    command += ["--http-port", "off", "--grpc-port", "off"]
    command += ["--metrics-port", "off", *arguments]
    with (run_dir / "test.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(environment)
        )
    server = Server(process, run_dir, name)
    try:
        if ready_seconds is not None:
            server.wait_ready(ready_seconds)
        yield server
        code = server.stop() if process.poll() is None else process.returncode
        if code != 0:
            raise server._failed(f"ended with exit code {code}")
        left = server.leftovers()
        if left:
            raise server._failed(f"left behind: {', '.join(left)}")
    finally:
        if process.poll() is None:
            process.kill()  # its children die with it
            process.wait()
        shutil.rmtree(run_dir, ignore_errors=True)


def _environment(additional: dict[str, str] | None) -> dict[str, str]:
    """This process's, with this naiad importable: a checkout need not be installed."""
    home = str(Path(naiad.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = known if "site-packages" in home or home in known else [home, *known]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **(additional or {}),
    }


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended meanwhile
        return []

"""naiad or a real Triton with the models of `stock_models`, for tests that ask either.

A Triton is started by a command line of the caller's, in which {repository}, {http}, {grpc} and
{metrics} stand for the folder with the models and for three ports; Triton's own options follow it.
"""

from __future__ import annotations

import http.client
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from naiad.testing.server import serve
from support.stock_models import LOADED
from support.waiting import wait_until

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Stock:
    """A running server: HOST:PORT of each door, as stock clients are given them."""

    name: str
    http: str
    grpc: str
    metrics: str
    under_way: Callable[[], int] | None = None
    """How many requests it has not answered, where that can be asked."""

    @property
    def is_triton(self) -> bool:
        return self.name == "triton"


@contextmanager
def naiad_server(repository: Path, loaded: Sequence[str] = LOADED) -> Iterator[Stock]:
    arguments = ["--control-mode", "explicit", "--spares", "0"]
    for name in loaded:
        arguments += ["--load-model", name]
    for door in ("http", "grpc", "metrics"):
        arguments += [f"--{door}-port", "0"]
    with serve(repository, arguments=arguments) as server, server.client() as native:
        with grpc.insecure_channel(server.grpc_target) as channel:
            grpc.channel_ready_future(channel).result(CONNECT_SECONDS)

        def under_way() -> int:
            models = native.status()["models"]
            return sum(int(model["queued"] + model["executing"]) for model in models)

        yield Stock(
            "naiad",
            server.http_url.removeprefix("http://"),
            server.grpc_target,
            server.metrics_url.removeprefix("http://").removesuffix("/metrics"),
            under_way,
        )


@contextmanager
def triton_server(
    command: str, repository: Path, log: Path, loaded: Sequence[str] = LOADED
) -> Iterator[Stock]:
    """Raises AssertionError, with the last of its log, when it is not ready in time."""
    ports = free_ports()
    words = triton_words(command, repository, ports)
    words += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in loaded)]
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: process.poll() is not None or _is_ready(ports["http"]),
            "the Triton ready",
            START_SECONDS,
        )
        last = log.read_text(errors="replace")[-2000:]
        assert process.poll() is None, f"the Triton ended with {process.returncode}: {last}"
        places = {door: f"127.0.0.1:{port}" for door, port in ports.items()}
        yield Stock("triton", places["http"], places["grpc"], places["metrics"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def triton_words(command: str, repository: Path, ports: Mapping[str, int]) -> list[str]:
    """The command line, filled in."""
    return [word.format(repository=repository, **ports) for word in shlex.split(command)]


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def free_ports() -> dict[str, int]:
    """One for each door."""
    sockets = {door: socket.create_server(("127.0.0.1", 0)) for door in ("http", "grpc", "metrics")}
    try:
        return {door: one.getsockname()[1] for door, one in sockets.items()}
    finally:
        for one in sockets.values():
            one.close()

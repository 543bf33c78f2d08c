"""One server takes over from another on the same ports, under load: no request fails."""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from naiad.config.listening import listening
from naiad.testing.server import Server, serve
from support.bystander import grpc_asker, http_asker
from support.chaos_server import ENVIRONMENT
from support.repositories import add_identity
from support.waiting import wait_until

PATIENCE_S = 60.0


class Load:
    """Clients of each kind, which ask without pause and note what fails."""

    def __init__(self, http_port: int, grpc_port: int) -> None:
        self.answers = dict.fromkeys(("kept", "fresh", "grpc"), 0)
        self.faults: list[str] = []
        self._url = f"http://127.0.0.1:{http_port}"
        self._target = f"127.0.0.1:{grpc_port}"
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(6)
        self._running = [self._pool.submit(self._ask, kind) for kind in [*self.answers] * 2]

    def _ask(self, kind: str) -> None:
        while not self._is_over.is_set():
            asker = grpc_asker(self._target) if kind == "grpc" else http_asker(self._url)
            with asker as ask:
                while not self._is_over.is_set():
                    try:
                        ask()
                    except Exception as fault:
                        self.faults.append(f"{kind}: {fault!r}")
                    self.answers[kind] += 1
                    if kind == "fresh":
                        break

    def more(self, count: int) -> None:
        """Wait for so many more answers of each kind."""
        before = dict(self.answers)
        wait_until(
            lambda: all(self.answers[kind] >= before[kind] + count for kind in before),
            "answers",
            PATIENCE_S,
        )

    def end(self) -> None:
        self._is_over.set()
        for one in self._running:
            one.result(PATIENCE_S)
        self._pool.shutdown()


def started(stack: ExitStack, repository: Path, http_port: int, grpc_port: int) -> None:
    """A further server on these ports, until its gateways serve."""
    arguments = ["--http-port", str(http_port), "--grpc-port", str(grpc_port)]
    arguments += ["--reuse-http-port", "--reuse-grpc-port", "--management-port", "0"]
    server = stack.enter_context(serve(repository, arguments=arguments))
    wait_until(lambda: is_ready(server), "its gateway", PATIENCE_S)


def is_ready(server: Server) -> bool:
    """Asked where no other server answers. Nobody waits for it: it is there at once, or soon."""
    found = re.search(r"^management on http://(\S+)$", server.log, re.MULTILINE)
    assert found is not None
    connection = http.client.HTTPConnection(found[1], timeout=PATIENCE_S)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()


@pytest.mark.parametrize("restarts", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_one_server_takes_over_from_another(restarts: int, tmp_path: Path) -> None:
    add_identity(tmp_path, "echo", max_batch_size=8)
    with (
        listening("127.0.0.1", 0, what="http", reuse_port=True) as http_keeper,
        listening("127.0.0.1", 0, what="grpc", reuse_port=True) as grpc_keeper,
        ExitStack() as last,
    ):
        ports = (http_keeper.getsockname()[1], grpc_keeper.getsockname()[1])
        stack = ExitStack()
        started(stack, tmp_path, *ports)
        http_keeper.close()
        grpc_keeper.close()
        load = Load(*ports)
        last.callback(load.end)
        load.more(20)
        for _ in range(restarts):
            successor = ExitStack()
            started(successor, tmp_path, *ports)
            load.more(20)
            stack.close()  # SIGTERM, and the end of all of its processes
            stack = successor
            load.more(20)
        load.end()
        stack.close()
    print(f"\n  {restarts} restarts, {load.answers}, {len(load.faults)} failed")
    assert load.faults == []


@contextmanager
def gateway(run_dir: Path, ports: tuple[int, int]) -> Iterator[subprocess.Popen[bytes]]:
    """As supervisord starts one; serves when this returns, and ends clean when it is told to."""
    command = [sys.executable, "-m", "naiad.gateway", "--run-dir", str(run_dir), "--reuse-port"]
    command += ["--http-port", str(ports[0]), "--grpc-port", str(ports[1])]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [*command, "--management-address", f"unix:{folder}/socket"],
            env=ENVIRONMENT,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            wait_until(lambda: is_answered(f"{folder}/socket"), "the gateway", PATIENCE_S)
            yield process
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(path)
        except OSError:
            return False
        one.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n")
        one.settimeout(PATIENCE_S)
        return one.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("restarts", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_gateways_that_share_a_port_are_restarted_one_by_one(restarts: int, tmp_path: Path) -> None:
    add_identity(tmp_path, "echo", max_batch_size=8)
    with (
        serve(tmp_path) as server,
        listening("127.0.0.1", 0, what="http", reuse_port=True) as http_keeper,
        listening("127.0.0.1", 0, what="grpc", reuse_port=True) as grpc_keeper,
    ):
        ports = (http_keeper.getsockname()[1], grpc_keeper.getsockname()[1])
        running = [ExitStack(), ExitStack()]
        for one in running:
            one.enter_context(gateway(server.run_dir, ports))
        http_keeper.close()
        grpc_keeper.close()
        load = Load(*ports)
        try:
            load.more(20)
            for _ in range(restarts):
                running.pop(0).close()
                load.more(20)
                running.append(ExitStack())
                running[-1].enter_context(gateway(server.run_dir, ports))
                load.more(20)
        finally:
            load.end()
        for one in running:
            one.close()
    print(f"\n  {restarts} restarts, {load.answers}, {len(load.faults)} failed")
    assert load.faults == []

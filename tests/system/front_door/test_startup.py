"""What probes are told while models load, once they have, and when one cannot be had."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from naiad.testing.server import Server, serve
from support.repositories import add_identity
from support.waiting import wait_until

PORTS = ["--http-port", "0", "--grpc-port", "0", "--spares", "0"]
LOAD_MS = 2500


@contextmanager
def starting(repository: Path) -> Iterator[Server]:
    """A server whose ports are open; its models may not be there yet."""
    with serve(repository, arguments=PORTS, ready_seconds=None) as server:
        wait_until(lambda: "gRPC on" in server.log, "the ports are open")
        yield server


def asked(server: Server, what: str) -> tuple[int, str, str]:
    """(status, state, body)."""
    try:
        with urllib.request.urlopen(f"{server.http_url}/v2/health/{what}", timeout=20) as answer:
            return answer.status, answer.headers["Naiad-State"] or "", answer.read().decode()
    except urllib.error.HTTPError as fault:
        return fault.code, fault.headers["Naiad-State"] or "", fault.read().decode()


def serving(server: Server, service: str) -> bool:
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        found = stub.Check(request, timeout=20, wait_for_ready=True)
    return bool(found.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.parametrize("is_broken", [False, True])
def test_probes_tell_a_server_that_loads_from_one_that_is_broken(
    tmp_path: Path, is_broken: bool
) -> None:
    slow: dict[str, object] = {"load_ms": LOAD_MS}
    if is_broken:
        slow["fail_load"] = "out of luck"
    add_identity(tmp_path, "quick")
    add_identity(tmp_path, "slow", parameters=slow)
    with starting(tmp_path) as server:
        wait_until(lambda: "1 of 2 models are ready" in asked(server, "ready")[2], "one is ready")
        assert asked(server, "live")[0] == 200
        status, state, body = asked(server, "ready")
        assert (status, state) == (400, "loading")
        assert json.loads(body)["error"] == (
            "not ready, loading: 1 of 2 models are ready, 1 loading"
        )
        assert asked(server, "startup")[:2] == (503, "loading")
        assert not serving(server, "startup")
        assert not serving(server, "")
        wait_until(lambda: asked(server, "startup")[0] == 200, "all have settled")
        assert asked(server, "startup")[1:] == ("failed" if is_broken else "ready", "")
        assert serving(server, "startup")
        assert serving(server, "") is not is_broken
        status, state, body = asked(server, "ready")
        assert (status, body == "") == ((400, False) if is_broken else (200, True))
        if is_broken:
            assert state == "failed"
            assert "not ready, failed: 1 of 2 models are ready, 1 failed" in body
        shown = subprocess.run(
            [sys.executable, "-m", "naiad", "status", "--run-dir", str(server.run_dir)],
            capture_output=True, text=True, check=True, timeout=30,
        ).stdout  # fmt: skip
        expected = "1 of 2 models ready, 1 failed" if is_broken else "2 of 2 models ready"
        assert expected in shown.splitlines()[0]

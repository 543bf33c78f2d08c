"""The end of a server that is asked over HTTP and gRPC for more than its drain time."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.testing.server import ServerFailed, serve
from support.front_door import Given, GrpcDoor, HttpDoor, Refused
from support.models import add_echo
from support.waiting import wait_until

DRAIN_S = 1
LATE_S = 4
RUNS_MS = 3_000
ONE = Given("INPUT0", "FP32", [1], struct.pack("<f", 1))


def test_requests_beyond_the_drain_time_are_told_and_the_exit_code_says_so(tmp_path: Path) -> None:
    add_echo(tmp_path, "echo", "FP32 -1", instances=2)
    with pytest.raises(ServerFailed, match=f"exit code {int(ExitCode.DRAIN_TIMED_OUT)}"):
        ended_too_late(tmp_path)


def ended_too_late(repository: Path) -> None:
    arguments = ["--http-port", "0", "--grpc-port", "0", "--drain-seconds", str(DRAIN_S)]
    with (
        serve(repository, arguments=[*arguments, "--spares", "0"]) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        grpc_door, client = GrpcDoor(server), server.client()
        wait_until(lambda: is_live(grpc_door), "it listens for gRPC")
        asking = [
            pool.submit(door.infer, "echo", [ONE], parameters={"sleep_ms": 60_000})
            for door in (HttpDoor(server), grpc_door)
        ]
        wait_until(lambda: client.status()["models"][0]["executing"] == 2, "both executing")
        pids = server.pids.values()
        asked = time.monotonic()
        os.kill(server.process.pid, signal.SIGTERM)
        for one in asking:
            refused = one.exception(DRAIN_S + LATE_S)
            assert isinstance(refused, Refused)
            assert refused.code in ("UNAVAILABLE", "CANCELLED"), refused
        server.process.wait(DRAIN_S + LATE_S)
        assert time.monotonic() - asked > DRAIN_S
        grpc_door.close()
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_who_comes_late_is_refused_at_once_while_what_runs_is_finished(tmp_path: Path) -> None:
    add_echo(tmp_path, "echo", "FP32 -1", instances=2)
    arguments = ["--http-port", "0", "--grpc-port", "0", "--grace-seconds", "0.2"]
    with (
        serve(tmp_path, arguments=[*arguments, "--spares", "0"]) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        http_door, grpc_door, client = HttpDoor(server), GrpcDoor(server), server.client()
        wait_until(lambda: is_live(grpc_door), "it listens for gRPC")
        asking = [
            pool.submit(door.infer, "echo", [ONE], parameters={"sleep_ms": RUNS_MS})
            for door in (http_door, grpc_door)
        ]
        wait_until(lambda: client.status()["models"][0]["executing"] == 2, "both executing")
        os.kill(server.process.pid, signal.SIGTERM)
        for place in (server.http_url, f"//{server.grpc_target}"):
            wait_until(partial(is_refused, place), f"nobody listens at {place}")
        late = GrpcDoor(server)
        with pytest.raises(Refused, match="UNAVAILABLE"):
            late.is_live()
        assert not any(one.done() for one in asking)
        for one in asking:
            assert one.result(LATE_S)["OUTPUT0"].data == ONE.data
        late.close()
        grpc_door.close()
        server.process.wait(LATE_S)


def is_refused(place: str) -> bool:
    parts = urlsplit(place)
    try:
        socket.create_connection((parts.hostname, parts.port), LATE_S).close()
    except ConnectionRefusedError:
        return True
    return False


def is_live(door: GrpcDoor) -> bool:
    try:
        return door.is_live()
    except Refused:
        return False

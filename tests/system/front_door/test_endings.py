"""The end of a server that is asked over HTTP and gRPC for more than its drain time."""

from __future__ import annotations

import os
import signal
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.testing.server import ServerFailed, serve
from support.front_door import Given, GrpcDoor, HttpDoor, Refused
from support.models import add_echo
from support.waiting import wait_until

DRAIN_S = 1
LATE_S = 4
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


def is_live(door: GrpcDoor) -> bool:
    try:
        return door.is_live()
    except Refused:
        return False

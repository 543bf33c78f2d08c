"""The front door in trouble: gateways are killed, crowds vanish, models load for long.

The short forms are part of every run of the suite; `make soak` runs the full ones. Times are
printed, and asserted far above the usual, because other work on the machine may delay anything.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from naiad.cli.slots import EARLY_DEATH_NS, NS
from naiad.gateway.http2 import frames as f
from naiad.gateway.proto import inference_pb2 as pb
from naiad.testing.server import Server, serve
from support.bystander import bystanders
from support.chaos import clients
from support.hostile_frames import enveloped, head
from support.models_python import python_model
from support.repositories import add_identity
from support.waiting import wait_until
from support.watched import MIB, Watched

PORTS = ["--http-port", "0", "--grpc-port", "0"]
PATIENCE_S = 60.0
PROBE_SECONDS = 0.05
BACK_SECONDS_MAX = 5.0
"""A second on a quiet machine, as the printed figures say."""
CROWD_GROWTH_BYTES_MAX = 128 * MIB


def place_of(url: str) -> tuple[str, int]:
    place = urlsplit(url if "//" in url else f"//{url}")
    assert place.hostname is not None
    assert place.port is not None
    return place.hostname, place.port


@contextlib.contextmanager
def connected(server: Server) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*place_of(server.http_url), timeout=PATIENCE_S)
    try:
        yield connection
    finally:
        connection.close()


def is_live(server: Server) -> bool:
    """Asked on a connection of its own."""
    with connected(server) as connection:
        return asked_live(connection) == 200


def asked_live(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/v2/health/live")
    answer = connection.getresponse()
    answer.read()
    return answer.status


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.soak)])
def test_killed_gateways_are_back_within_a_second(kills: int, tmp_path: Path) -> None:
    """Who connects meanwhile waits in the backlog; native clients notice nothing.

    Each lives until its death is no early one, after which the next start would be put off.
    """
    add_identity(tmp_path, "echo", max_batch_size=8)
    took_s = []
    with serve(tmp_path, arguments=PORTS) as server, clients(server, "echo", count=2) as tallies:
        assert is_live(server)
        for _ in range(kills):
            first = server.pids["gateway-0"]
            wait_until(partial(has_lived, first), "a life")
            os.kill(first, signal.SIGKILL)
            start = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                # At once: nobody listens, and nobody is refused.
                assert all(pool.map(is_live, [server] * 8))
            took_s.append(time.monotonic() - start)
            assert server.pids["gateway-0"] != first
    print(
        f"\n  {kills} kills, answers again after {sorted(took_s)[len(took_s) // 2]:.2f} s,"
        f" {max(took_s):.2f} s at most"
    )
    assert max(took_s) < BACK_SECONDS_MAX
    for tally in tallies:
        assert (tally.failed, tally.wrong, tally.errors) == (0, 0, [])
        assert tally.right == tally.sent


def has_lived(pid: int) -> bool:
    """Long enough that its death is none of a process that cannot start."""
    return time.time() - psutil.Process(pid).create_time() > 1.5 * EARLY_DEATH_NS / NS


def test_other_gateways_go_on(tmp_path: Path) -> None:
    """Connections of the killed one break, all others live."""
    add_identity(tmp_path, "echo", max_batch_size=8)
    with serve(tmp_path, arguments=[*PORTS, "--gateways", "3"]) as server:
        wait_until(lambda: {"gateway-1", "gateway-2"} <= server.pids.keys(), "all gateways")
        with contextlib.ExitStack() as stack:
            all_ones = [stack.enter_context(connected(server)) for _ in range(30)]
            for one in all_ones:
                assert asked_live(one) == 200
            mine = held_by(server.pids["gateway-1"], all_ones)
            os.kill(server.pids["gateway-1"], signal.SIGKILL)
            for number, one in enumerate(all_ones):
                try:
                    is_answered = asked_live(one) == 200
                except (OSError, http.client.HTTPException):
                    is_answered = False
                assert is_answered is (number not in mine)


def held_by(pid: int, connections: list[http.client.HTTPConnection]) -> set[int]:
    """Which of these connections end in that process."""
    peers = {one.raddr.port for one in psutil.Process(pid).net_connections("tcp") if one.raddr}
    return {number for number, one in enumerate(connections) if one.sock.getsockname()[1] in peers}


@pytest.mark.parametrize("count", [150, pytest.param(1_000, marks=pytest.mark.soak)])
def test_crowds_that_vanish_leave_nothing(count: int, tmp_path: Path) -> None:
    """So many over HTTP and as many over gRPC, with a request each that waits or runs."""
    add_identity(tmp_path, "echo", max_batch_size=1, parameters={"sleep_ms": 200})
    with serve(tmp_path, arguments=PORTS) as server:
        client = server.client()
        assert is_live(server)
        with contextlib.closing(socket.create_connection(place_of(server.grpc_target))):
            watched = Watched(server, "gateway-0", "broker")
            crowd = [asked_http(server) for _ in range(count)]
            crowd += [asked_grpc(server) for _ in range(count)]
            wait_until(
                lambda: in_flight(client.status()) >= 2 * count * 9 // 10,
                "the requests",
                PATIENCE_S,
            )
            for one in crowd:
                one.close()
            start = time.monotonic()
            wait_until(lambda: in_flight(client.status()) <= 2, "their end", PATIENCE_S)
            print(f"\n  {2 * count} clients, forgotten in {time.monotonic() - start:.2f} s")
            wait_until(
                lambda: (
                    [row["queued"] + row["executing"] for row in client.status()["models"]] == [0]
                ),
                "an empty queue",
            )
            print(watched.check(CROWD_GROWTH_BYTES_MAX))


def in_flight(status: dict[str, list[dict[str, int]]]) -> int:
    return sum(row["in_flight"] for row in status["sessions"])


def asked_http(server: Server) -> socket.socket:
    tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": [1] * 16}
    text = json.dumps({"inputs": [tensor]}).encode()
    one = socket.create_connection(place_of(server.http_url), PATIENCE_S)
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(text)}\r\n\r\n"
    one.sendall(head.encode() + text)
    return one


def asked_grpc(server: Server) -> socket.socket:
    found = pb.ModelInferRequest(model_name="echo")
    found.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    found.raw_input_contents.append(bytes(64))
    one = socket.create_connection(place_of(server.grpc_target), PATIENCE_S)
    one.sendall(
        f.PREFACE
        + f.settings({})
        + f.frame(f.HEADERS, f.END_HEADERS, 1, head("ModelInfer"))
        + f.frame(f.DATA, f.END_STREAM, 1, enveloped(found.SerializeToString()))
    )
    return one


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_a_long_load_disturbs_nobody(seconds: float, tmp_path: Path) -> None:
    """Live throughout, and other models answer as fast as before."""
    add_identity(tmp_path, "echo", max_batch_size=64)
    folder = add_identity(tmp_path, "slow", max_batch_size=8)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('"identity"', '"python"', 1))
    (folder / "1" / "model.py").write_text(
        python_model(
            "return [output(array_of(request)) for request in requests]",
            more=f"def initialize(self, arguments):\n    time.sleep({seconds})",
        )
    )
    arguments = [*PORTS, "--control-mode", "explicit", "--load-model", "echo"]
    with (
        serve(tmp_path, arguments=arguments) as server,
        bystanders(server.http_url, server.grpc_target) as others,
        connected(server) as probe,
        ThreadPoolExecutor(1) as pool,
    ):
        others.phase("quiet")
        others.wait(min(1000, int(100 * seconds)))
        loading = pool.submit(server.client().load, "slow")
        others.phase("loading")
        statuses: list[int] = []
        while not loading.done():
            statuses.append(asked_live(probe))
            assert is_live(server)
            wait([loading], PROBE_SECONDS)
        loading.result()
        others.phase("loaded")
        others.wait(min(1000, int(100 * seconds)))
        probe.request("GET", "/v2/models/slow/ready")
        assert probe.getresponse().status == 200
    print(f"\n  {len(statuses)} probes\n{others.table()}")
    assert set(statuses) == {200}
    assert len(statuses) > 5 * seconds
    assert others.errors == []

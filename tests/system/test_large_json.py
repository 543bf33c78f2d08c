"""Large JSON both ways, in a process beside the gateway: answers, faults, its death, the end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from naiad.testing.server import Server, serve
from support.repositories import add_identity
from support.waiting import wait_until

NUMBERS = [number / 4 for number in range(300_000)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("large")
    config = add_identity(repository, "identity", max_batch_size=8) / "config.pbtxt"
    config.write_text(config.read_text().replace("[ 16 ]", "[ -1 ]"))
    with serve(repository, arguments=["--http-port", "0"]) as running:
        yield running


def asked(server: Server, text: bytes, **headers: str) -> tuple[int, Any]:
    place = urlsplit(server.http_url)
    connection = HTTPConnection(str(place.hostname), place.port, timeout=60)
    try:
        connection.request("POST", "/v2/models/identity/infer", text, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def body(data: list[Any], **parameters: Any) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, len(data)], "data": data}
    return json.dumps({"id": "7", "inputs": [tensor], "parameters": parameters}).encode()


def beside(server: Server) -> list[psutil.Process]:
    """Processes that gateways have started."""
    gateways = [pid for name, pid in server.pids.items() if "gateway" in name]
    found = [child for pid in gateways for child in psutil.Process(pid).children()]
    return [one for one in found if "spawn_main" in " ".join(one.cmdline())]


def test_numbers_go_in_and_come_out(server: Server) -> None:
    status, found = asked(server, body(NUMBERS))

    assert (status, found["id"]) == (200, "7")
    assert found["outputs"][0]["data"] == NUMBERS
    assert len(beside(server)) == 1


def test_faults_are_told_as_of_small_ones(server: Server) -> None:
    for wrong, text in (
        (body([*NUMBERS, "no"]), "expected numbers, got a string"),
        (body(NUMBERS)[:-1], "failed to parse the request JSON buffer"),
        (body(NUMBERS, triton_mine=1), "triton_mine"),
    ):
        status, found = asked(server, wrong)
        assert status == 400
        assert text in found["error"]


def test_its_death_costs_the_requests_it_had_and_no_more(server: Server) -> None:
    asked(server, body(NUMBERS))
    (process,) = beside(server)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(20)

    def statuses() -> int:
        return asked(server, body(NUMBERS))[0]

    wait_until(lambda: statuses() == 200, "another process")


def test_it_ends_with_its_gateway(tmp_path: Path) -> None:
    config = add_identity(tmp_path, "identity", max_batch_size=8) / "config.pbtxt"
    config.write_text(config.read_text().replace("[ 16 ]", "[ -1 ]"))
    with serve(tmp_path, arguments=["--http-port", "0"]) as server:
        asked(server, body(NUMBERS))
        (process,) = beside(server)
        (gateway,) = (pid for name, pid in server.pids.items() if "gateway" in name)
        os.kill(gateway, signal.SIGKILL)
        wait_until(lambda: not process.is_running(), "its end")

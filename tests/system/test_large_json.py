"""Large JSON both ways, read and written in slices: answers, faults, and others meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from naiad.testing.server import Server, serve
from support.repositories import add_identity

NUMBERS = [number / 4 for number in range(300_000)]
OTHERS_SHARE_MAX = 0.25
"""Of a large request's time, for which a small one waits; half of it when it is read at once."""


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


def test_numbers_go_in_and_come_out(server: Server) -> None:
    status, found = asked(server, body(NUMBERS))

    assert (status, found["id"]) == (200, "7")
    assert found["outputs"][0]["data"] == NUMBERS


def test_faults_are_told_as_of_small_ones(server: Server) -> None:
    for wrong, text in (
        (body([*NUMBERS, "no"]), "expected numbers, got a string"),
        (body(NUMBERS)[:-1], "failed to parse the request JSON buffer"),
        (body(NUMBERS, triton_mine=1), "triton_mine"),
    ):
        status, found = asked(server, wrong)
        assert status == 400
        assert text in found["error"]


def test_others_are_served_meanwhile(server: Server) -> None:
    text = body(NUMBERS * 4)
    small = body([1.0, 2.0])
    found: list[int] = []
    large = threading.Thread(target=lambda: found.append(asked(server, text)[0]))
    begun = time.monotonic()
    large.start()
    waits: list[float] = []
    while not found and large.is_alive():
        before = time.monotonic()
        assert asked(server, small)[0] == 200
        waits.append(time.monotonic() - before)
    took = time.monotonic() - begun
    large.join()
    assert found == [200]
    assert max(waits) < OTHERS_SHARE_MAX * took

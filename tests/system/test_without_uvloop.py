"""A server on asyncio's own event loop: what `pip install naiad` gives."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import naiad
from naiad.gateway.limits import Limits
from naiad.testing.server import Server, serve
from support.repositories import add_identity

ANSWER_SECONDS = 10.0
LIMITS = Limits()
POST = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: naiad\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("asyncio")
    add_identity(root / "models", "identity", max_batch_size=8)
    hidden = root / "hidden"
    hidden.mkdir()
    (hidden / "uvloop.py").write_text("raise ImportError('not installed')\n")
    here = str(Path(naiad.__file__).parent.parent)
    path = os.pathsep.join((str(hidden), here, os.environ.get("PYTHONPATH", "")))
    arguments = ["--http-port", "0", "--user-header", "X-User", "--user-bytes-max", "1000000"]
    with serve(root / "models", arguments=arguments, environment={"PYTHONPATH": path}) as running:
        maps = Path(f"/proc/{running.pids['gateway-0']}/maps")
        assert "uvloop" not in maps.read_text()
        yield running


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (400, b"nonsense\r\n\r\n"),
        (413, POST + b"Content-Length: %d\r\n\r\n" % (LIMITS.body_bytes_max + 1)),
        (417, POST + b"Content-Length: 1\r\nExpect: wonders\r\n\r\n"),
        (431, b"GET /" + b"a" * (LIMITS.header_bytes_max + 1)),
        (431, POST + b"X: 1\r\n" * (LIMITS.header_count_max + 1)),
        (400, POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * LIMITS.pieces_max * 2),
    ],
    ids=["nonsense", "body", "expect", "url", "fields", "chunks"],
)
def test_what_is_refused_is_told(server: Server, status: int, sent: bytes) -> None:
    place = urlsplit(server.http_url)
    with socket.create_connection((place.hostname, place.port), ANSWER_SECONDS) as one:
        one.sendall(sent)
        with closing(http.client.HTTPResponse(one)) as answer:
            answer.begin()
            assert answer.status == status
            assert b"error" in answer.read()
    assert "Traceback" not in server.log

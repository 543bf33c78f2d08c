"""The metrics port against real sockets: the path, the limits, and clients that misbehave."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from naiad.config.listening import listening
from naiad.metrics import http_server
from naiad.metrics.http_server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, MetricsServer
from naiad.protocol.errors import Code, Unavailable
from support.waiting import wait_until

PAGE = b"# a page\n"


@contextmanager
def serving(page: Callable[[], bytes] = lambda: PAGE) -> Iterator[int]:
    """The port of a server with this page."""
    with MetricsServer(listening("127.0.0.1", 0, what="port"), page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def port() -> Iterator[int]:
    with serving() as one:
        yield one


def ask(port: int, path: str = "/metrics", method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path)
    return connection.getresponse()


def raw(port: int, *parts: bytes) -> bytes:
    """What comes back for these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
        found = b""
        while content := connection.recv(65536):
            found += content
        return found


@pytest.mark.parametrize("path", ["/metrics", "/metrics?name[]=up"])
def test_the_page_as_triton_sends_it(port: int, path: str) -> None:
    answer = ask(port, path)
    assert (answer.status, answer.read()) == (200, PAGE)
    assert answer.getheader("Content-Type") == "text/plain; charset=utf-8"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/metrics/", "/metric", "/v2/health/live", "/../metrics"])
def test_any_other_path_is_not_found(port: int, method: str, path: str) -> None:
    assert ask(port, path, method).status == 404


def test_methods(port: int) -> None:
    head = ask(port, method="HEAD")
    assert (head.status, head.getheader("Content-Length"), head.read()) == (
        200,
        str(len(PAGE)),
        b"",
    )
    post = ask(port, method="POST")
    assert (post.status, post.getheader("Allow")) == (405, "GET, HEAD")


def test_a_server_that_does_not_answer_is_a_503_that_names_no_path() -> None:
    def page() -> bytes:
        raise Unavailable("nobody at /run/secret/place", code=Code.TIMEOUT)

    with serving(page) as port:
        answer = ask(port)
        text = answer.read().decode()
        assert answer.status == 503
        assert "(timeout)" in text
        assert "secret" not in text


@pytest.mark.parametrize(
    "header",
    [b"X: " + b"a" * REQUEST_BYTES_MAX, b"\r\n".join([b"X: y"] * (REQUEST_BYTES_MAX // 4))],
    ids=["one long header", "many headers"],
)
def test_a_request_that_is_too_long(port: int, header: bytes) -> None:
    found = raw(port, b"GET /metrics HTTP/1.1\r\n" + header[: REQUEST_BYTES_MAX - 23])
    assert found.startswith(b"HTTP/1.0 431 "), found[:100]
    assert ask(port).status == 200


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\0" * 100 + b"\n"])
def test_what_is_not_http_gets_an_end(port: int, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(junk)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert ask(port).status == 200


def test_a_request_that_drips_ends_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS_MAX", 0.3)
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        connection.settimeout(0.02)
        while True:
            try:
                connection.sendall(b"X")
                if connection.recv(1) == b"":
                    break
            except TimeoutError:
                assert time.monotonic() - begun < 15
            except ConnectionError:
                break
    assert time.monotonic() - begun >= 0.3
    assert ask(port).status == 200


def test_more_connections_than_allowed_are_told_so(port: int) -> None:
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX)]
    wait_until(lambda: raw(port).startswith(b"HTTP/1.0 503 "), "the limit is reached")
    for one in held:
        one.close()
    wait_until(lambda: ask(port).status == 200, "there is room again")


def test_clients_that_vanish_before_the_answer_cost_nothing() -> None:
    asked = threading.Semaphore(0)
    go_on = threading.Event()

    def page() -> bytes:
        asked.release()
        assert go_on.wait(20)
        return PAGE * 1_000_000

    with serving(page) as port:
        for _ in range(CONNECTIONS_MAX):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert asked.acquire(timeout=20)
        go_on.set()
        wait_until(lambda: ask(port).status == 200, "every thread has ended")


def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "ANSWER_SECONDS_MAX", 0.2)
    with serving(lambda: PAGE * 5_000_000) as port:
        connections = [
            socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX)
        ]
        for one in connections:
            one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        wait_until(lambda: ask(port, "/").status == 404, "their threads have ended")
        for one in connections:
            one.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /metrics HTTP/x\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"BREW /metrics HTTP/1.1\r\n\r\n", 501),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_what_is_no_request_gets_one_plain_line(
    port: int, request_bytes: bytes, status: int
) -> None:
    head, _, body = raw(port, request_bytes).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 %d " % status)
    assert b"Content-Type: text/plain" in head
    assert body.endswith(b": expected GET /metrics in HTTP/1.0 or HTTP/1.1, without TLS\n")
    assert body.count(b"\n") == 1

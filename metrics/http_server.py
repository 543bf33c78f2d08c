"""The port that Prometheus asks: GET /metrics, anything else is not found.

The standard library's server speaks HTTP; what it lacks is here: bounds on connections, on the
bytes of a request and on the time of a whole connection, however slowly it drips.
"""

from __future__ import annotations

import contextlib
import io
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from naiad.metrics.page import CONTENT_TYPE
from naiad.protocol.errors import NaiadError

CONNECTIONS_MAX: Final = 32
"""At a time; each has a thread. More are told to come again."""
REQUEST_BYTES_MAX: Final = 16 * 1024
REQUEST_SECONDS_MAX: Final = 5.0
"""For the whole request to arrive."""
ANSWER_SECONDS_MAX: Final = 10.0
"""For the answer to be taken."""
PATH: Final = "/metrics"
_BUSY: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class MetricsServer(socketserver.ThreadingMixIn, HTTPServer):
    """Serves on a listening socket that somebody else made.

    Args:
        listener: owned from now on.
        page: makes a page; called in many threads; raises NaiadError.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, page: Callable[[], bytes]) -> None:
        super().__init__(("", 0), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.page = page
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if there is room for one."""
        if not self._room.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be had
            self._room.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or broke a limit while it was being told so, is no event."""


class _TooLong(Exception):
    """The request has more bytes than REQUEST_BYTES_MAX."""


class _Bounded(io.RawIOBase):
    """Reads a socket until a moment, and so many bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = REQUEST_BYTES_MAX
        self._end = time.monotonic() + REQUEST_SECONDS_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError, _TooLong."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        if self._left <= 0:
            raise _TooLong
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class _Request(BaseHTTPRequestHandler):
    """One connection, which is one request: HTTP/1.0."""

    server: MetricsServer
    server_version = "naiad"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Bounded(self.connection))
        self.requestline = ""
        self.request_version = self.protocol_version
        self.command = ""

    def handle(self) -> None:
        try:
            super().handle()
        except _TooLong:
            self._answer(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"expected at most {REQUEST_BYTES_MAX} bytes of request and headers\n".encode(),
            )

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, f"only {PATH} is here\n".encode())
            return
        try:
            page = self.server.page()
        except NaiadError as fault:
            # Its message may name paths of this machine.
            text = f"the server does not tell its counters now ({fault.code}); ask again\n"
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, text.encode())
            return
        self._answer(HTTPStatus.OK, page)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, f"only {PATH} is here\n".encode())
            return
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET is the method\n")

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library cannot read is answered like all else here, in one line."""
        self.request_version = self.protocol_version  # or it answers as HTTP/0.9: without a status
        status = HTTPStatus(code)
        text = f"{status.phrase}: expected GET {PATH} in HTTP/1.0 or HTTP/1.1, without TLS\n"
        self._answer(status, text.encode())

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.connection.settimeout(ANSWER_SECONDS_MAX)
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """A line per scrape would be the whole log."""

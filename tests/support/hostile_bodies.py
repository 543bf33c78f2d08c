"""HTTP clients that ask for too much at once, or too slowly."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

PATIENCE_S: Final = 60.0
INFER: Final = "/v2/models/echo/infer"
PIECES: Final = 70_000
DRIP_SECONDS: Final = 1.0
MANY: Final = 100_000


def _json(data: str) -> bytes:
    return (
        '{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","data":' + data + "}]}"
    ).encode()


def gzip_bomb() -> tuple[bytes, dict[str, str]]:
    """A quarter of a gigabyte in a quarter of a megabyte."""
    return gzip.compress(b" " * 2**28, 6), {"Content-Encoding": "gzip"}


def gzip_of_much() -> tuple[bytes, dict[str, str]]:
    """Just below the limit: what is inflated is JSON, of nothing."""
    return gzip.compress(b" " * (2**26 - 100), 6), {"Content-Encoding": "gzip"}


def pieces() -> tuple[list[bytes], dict[str, str]]:
    return [b"x"] * PIECES, {"Transfer-Encoding": "chunked"}


def deep() -> tuple[bytes, dict[str, str]]:
    return _json("[" * MANY + "]" * MANY), {}


def deep_elsewhere() -> tuple[bytes, dict[str, str]]:
    return b'{"parameters":' + b'{"a":' * MANY + b"1" + b"}" * MANY + b"}", {}


def arrays() -> tuple[bytes, dict[str, str]]:
    return _json("[" + ",".join(["[]"] * 2**20) + "]"), {}


def huge_number() -> tuple[bytes, dict[str, str]]:
    return _json("[" + "9" * MANY + "]"), {}


def huge_numbers() -> tuple[bytes, dict[str, str]]:
    return _json("[" + ",".join(["1e308", "-1e999", "9" * 300] * 5) + ",1]"), {}


def many_keys() -> tuple[bytes, dict[str, str]]:
    keys = ",".join(f'"k{number}":{number}' for number in range(MANY))
    return ('{"inputs":[],"parameters":{' + keys + "}}").encode(), {}


def most_keys() -> tuple[bytes, dict[str, str]]:
    """As many as are parsed at once."""
    keys = ",".join(f'"k{number}":{number}' for number in range(18_000))
    return ('{"inputs":[],"parameters":{' + keys + "}}").encode(), {}


def long_string() -> tuple[bytes, dict[str, str]]:
    return _json('["' + "\\\\" * 2**22 + '"]').replace(b"FP32", b"BYTES"), {}


def many_inputs() -> tuple[bytes, dict[str, str]]:
    one = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": []}
    return json.dumps({"inputs": [one] * 20_000}).encode(), {}


def huge_shape() -> tuple[bytes, dict[str, str]]:
    one = {"name": "INPUT0", "shape": [1] * 100_000, "datatype": "FP32", "data": [1]}
    return json.dumps({"inputs": [one]}).encode(), {}


def long_header() -> tuple[bytes, dict[str, str]]:
    return b"{}", {"X": "y" * 200_000}


Body = tuple[bytes | list[bytes], dict[str, str]]

_MAKE: Final[dict[str, Callable[[], Body]]] = {
    one.__name__: one
    for one in (
        gzip_bomb, gzip_of_much, pieces, deep, deep_elsewhere, arrays, huge_number, huge_numbers,
        many_keys, most_keys, long_string, many_inputs, huge_shape, long_header,
    )
}  # fmt: skip
HEAVY: Final = dict.fromkeys(_MAKE, 400) | {"long_header": 431, "huge_numbers": 200}
"""The status of each. Numbers beyond a float's are its infinity."""


@cache
def _made(name: str) -> Body:
    """Making some takes longer than sending them, and would be measured as well."""
    return _MAKE[name]()


def heavy(url: str, name: str) -> int:
    """Send this one; the status of the answer."""
    body, headers = _made(name)
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE_S)
    try:
        is_chunked = "Transfer-Encoding" in headers
        # It may be refused before all of it was sent; the answer is there.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", INFER, body, headers, encode_chunked=is_chunked)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


class Crowd:
    """Of each kind so many clients: slow headers, slow bodies, and who takes no answer."""

    def __init__(self, url: str, count: int) -> None:
        place = urlsplit(url)
        address = (str(place.hostname), place.port or 80)
        self._dripping: list[socket.socket] = []
        self._all: list[socket.socket] = []
        start = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n"
        body = start + "Content-Length: 100000\r\n\r\n"
        stats = "GET /v2/models/echo/config HTTP/1.1\r\nHost: x\r\n\r\n"
        for _ in range(count):
            for text in (start, body, stats * 8):
                one = socket.create_connection(address, PATIENCE_S)
                if text is not start and text is not body:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                else:
                    self._dripping.append(one)
                self._all.append(one)
                one.sendall(text.encode())

    def drip(self) -> None:
        """One byte more from each that sends, within DRIP_SECONDS."""
        pause_seconds = DRIP_SECONDS / len(self._dripping)
        for one in self._dripping:
            time.sleep(pause_seconds)
            with suppress(OSError):  # the server's patience is over
                one.sendall(b"x")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for one in self._all:
            one.close()

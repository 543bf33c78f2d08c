"""One HTTP request as it was received, and the bytes of a response. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from naiad.client.requests import Buffer
from naiad.gateway.calls import BodyPlace
from naiad.gateway.http_answer import BINARY_TYPE, JSON_TYPE
from naiad.gateway.http_status import HttpError, error_body, reason_of
from naiad.gateway.users import given_twice

JOINED_BYTES_MAX: Final = 64 * 1024
"""Up to this size a response is one buffer: copying it is cheaper than writing its parts."""

_JSON_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: " + JSON_TYPE.encode() + b"\r\nContent-Length: %d\r\n"
)
_BINARY_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: "
    + BINARY_TYPE.encode()
    + b"\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n"
)


class Head:
    """What stands before a body. Shared by all requests whose heads are the same bytes: immutable.

    `headers` have lower-case names; repeated ones are joined by commas. `plan` is for whoever
    answers: what follows from the head alone, and need not be worked out again.
    """

    __slots__ = ("headers", "keeps_alive", "length", "method", "names", "path", "plan", "repeated",
                 "says_alive")  # fmt: skip

    def __init__(
        self,
        method: str,
        path: bytes,
        headers: dict[bytes, bytes],
        keeps_alive: bool,
        length: int = 0,
        *,
        says_alive: bool = False,
        repeated: frozenset[bytes] = frozenset(),
        names: dict[bytes, bytes] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.keeps_alive = keeps_alive
        self.length = length
        """Of the body, when that follows from the head."""
        self.says_alive = says_alive
        """The client would take silence for the end of the connection: it speaks HTTP/1.0."""
        self.repeated = repeated
        """Names of headers that came more than once."""
        self.names = names or {}
        """As they were sent, by those of `headers`; of several spellings the first."""
        self.plan: object = None

    def only(self, name: bytes) -> bytes | None:
        """The value of a header that must not be there twice. Raises RequestError when it is."""
        if name in self.repeated:
            raise given_twice(name)
        return self.headers.get(name)

    def header(self, name: bytes) -> str | None:
        """A header's value by its lower-case name."""
        found = self.headers.get(name)
        return None if found is None else found.decode("latin-1")


class HttpRequest:
    """A whole request. `place`: the body was received in an arena."""

    __slots__ = ("body", "head", "place")

    def __init__(self, head: Head, body: Buffer, place: BodyPlace | None = None) -> None:
        self.head = head
        self.body = body
        self.place = place


class Response(NamedTuple):
    """`json_length` is set when binary tensors follow the JSON."""

    status: int
    parts: list[Buffer]
    json_length: int | None = None
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()


EMPTY: Final = Response(200, [])


def error_response(fault: HttpError) -> Response:
    return Response(fault.status, [error_body(fault.message)], headers=fault.headers)


def wire(
    response: Response, *, closes: bool, is_head: bool = False, says_alive: bool = False
) -> list[Buffer]:
    """What goes to the socket: one buffer, or several when they are large."""
    status, parts, json_length, content_type, headers = response
    size = 0
    for part in parts:
        size += len(part)
    if status == 200 and size and not headers and content_type == JSON_TYPE:
        head = _JSON_HEAD % size if json_length is None else _BINARY_HEAD % (json_length, size)
    else:
        head = _head(response, size)
    if closes:
        head += b"Connection: close\r\n"
    elif says_alive:
        head += b"Connection: keep-alive\r\n"
    head += b"\r\n"
    if is_head:
        return [head]
    if size <= JOINED_BYTES_MAX:
        return [b"".join([head, *parts])]
    return [head, *parts]


def _head(response: Response, size: int) -> bytes:
    status, _, json_length, content_type, headers = response
    lines = [f"HTTP/1.1 {status} {reason_of(status)}"]
    if size:
        is_binary = json_length is not None and content_type == JSON_TYPE
        lines.append(f"Content-Type: {BINARY_TYPE if is_binary else content_type}")
    if json_length is not None:
        lines.append(f"Inference-Header-Content-Length: {json_length}")
    lines.append(f"Content-Length: {size}")
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")

"""A gRPC call's head, and the trailers that end it. Pure.

What of the headers matters is worked out once for each different block of them.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote

from naiad.gateway.error_text import told
from naiad.gateway.grpc_codec.status import STATUS_OF, Status
from naiad.gateway.http2.hpack import Field, encoded
from naiad.gateway.users import given_twice
from naiad.protocol.errors import NaiadError

CODE_KEY: Final = b"naiad-code"
"""Trailing metadata of a failed call: naiad's own, finer code."""
DETAILS_BYTES_MAX: Final = 6000
"""Of a status text as it travels: clients refuse more than 8 KiB of trailing metadata."""
CODINGS: Final = ("identity", "gzip", "deflate")

_UNQUOTED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

OK_HEAD: Final = encoded([(b":status", b"200"), (b"content-type", b"application/grpc")])
OK_END: Final = encoded([(b"grpc-status", b"0")])


class Head(NamedTuple):
    """What a call's headers say. `http_status` is not 200 when it is no gRPC call at all."""

    path: bytes
    http_status: int = 200
    timeout_seconds: float | None = None
    coding: str = "identity"
    metadata: tuple[Field, ...] = ()
    """Everything that is the caller's own."""

    def value(self, name: bytes) -> bytes | None:
        """The caller's own header of that name; None when it is not there exactly once."""
        found = [value for key, value in self.metadata if key == name]
        return found[0] if len(found) == 1 else None

    def only(self, name: bytes) -> bytes | None:
        """A header that must not be there twice. Raises RequestError when it is."""
        found = [value for key, value in self.metadata if key == name]
        if len(found) > 1:
            raise given_twice(name)
        return found[0] if found else None


def head_of(fields: list[Field]) -> Head:
    """The head in a request's header fields."""
    found: dict[bytes, bytes] = {}
    own: list[Field] = []
    for name, value in fields:
        if name[:1] == b":" or name in _KNOWN:
            found[name] = value
        else:
            own.append((name, value))
    path = found.get(b":path", b"")
    if found.get(b":method") != b"POST":
        return Head(path, http_status=405)
    if not found.get(b"content-type", b"").startswith(b"application/grpc"):
        return Head(path, http_status=415)
    timeout = None
    match = _TIMEOUT.fullmatch(found.get(b"grpc-timeout", b""))
    if match is not None:
        timeout = int(match[1]) * _SECONDS[match[2]]
    coding = found.get(b"grpc-encoding", b"identity").decode("latin-1")
    return Head(path, 200, timeout, coding, tuple(own))


_KNOWN: Final = frozenset(
    {b"content-type", b"te", b"user-agent", b"grpc-timeout", b"grpc-encoding",
     b"grpc-accept-encoding", b"grpc-internal-encoding-request"}
)  # fmt: skip


def fault_end(status: Status, message: str, code: str = "", *, is_all: bool) -> bytes:
    """The header block that ends a failed call; `is_all`: nothing of the answer was sent before."""
    fields: list[Field] = []
    if is_all:
        fields += [(b":status", b"200"), (b"content-type", b"application/grpc")]
    fields.append((b"grpc-status", str(int(status)).encode()))
    fields.append((b"grpc-message", details(message).encode()))
    if status is Status.UNIMPLEMENTED:
        fields.append((b"grpc-accept-encoding", ",".join(CODINGS).encode()))
    if code:
        fields.append((CODE_KEY, code.encode()))
    return encoded(fields)


def error_end(error: NaiadError, *, is_all: bool) -> bytes:
    """The same for an error of the family."""
    return fault_end(STATUS_OF[error.code], told(error), str(error.code), is_all=is_all)


def http_end(status: int) -> bytes:
    """The head of an answer to what is no gRPC call."""
    return encoded([(b":status", str(status).encode())])


def details(message: str) -> str:
    """A text as the message of a status, cut to what travels."""
    quoted = quote(message, safe=_UNQUOTED, errors="replace")
    while len(quoted) > DETAILS_BYTES_MAX:
        message = message[: len(message) * 4 // 5]
        quoted = quote(message, safe=_UNQUOTED, errors="replace")
    return quoted

"""Frames of HTTP/2 (RFC 9113): numbers and how they are written. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384
"""Of a frame's content, as every peer takes it."""
WINDOW_MAX: Final = 2**31 - 1
STREAM_MAX: Final = 2**31 - 1
WINDOW_AT_FIRST: Final = 65_535

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6


class Why(IntEnum):
    """Error codes of streams and connections."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The client broke the rules, or asks too much: say goodbye and close."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return b"".join(
        (
            len(content).to_bytes(3, "big"),
            bytes((kind, flags)),
            stream.to_bytes(4, "big"),
            content,
        )
    )


def settings(values: dict[int, int]) -> bytes:
    content = b"".join(
        key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()
    )
    return frame(SETTINGS, 0, 0, content)


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def reset(stream: int, why: Why) -> bytes:
    return frame(RST_STREAM, 0, stream, why.to_bytes(4, "big"))


def goaway(last_stream: int, why: Why, text: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + why.to_bytes(4, "big") + text)

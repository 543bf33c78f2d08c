"""How the broker and the repository helper talk: a length, then a msgpack map. Pure.

Four bytes, big-endian, say how many bytes of msgpack follow. Both ends are ours and of one release,
so the limit is against accidents; a broken frame still is a typed error and never a crash.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from naiad.protocol.errors import ProtocolError

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 64 * 2**20
"""The scan of MODELS_MAX ordinary models fits."""
_SURROGATES: Final = "surrogateescape"
"""File names need not be UTF-8."""


def pack_frame(message: dict[str, Any]) -> bytes:
    """The bytes of one message. Raises ProtocolError when it is larger than FRAME_BYTES_MAX."""
    body: bytes = msgpack.packb(message, unicode_errors=_SURROGATES)
    if len(body) > FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame of {len(body)} bytes is over the limit of {FRAME_BYTES_MAX}")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class FrameReader:
    """Bytes as they come, whole messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether no part of a message waits: the stream may end here."""
        return not self._buffer

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now.

        Raises ProtocolError for a length over FRAME_BYTES_MAX and for what is no msgpack map;
        the stream is then lost.
        """
        self._buffer += data
        messages = []
        while len(self._buffer) >= LENGTH_BYTES:
            size_bytes = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if size_bytes > FRAME_BYTES_MAX:
                limit = f"over the limit of {FRAME_BYTES_MAX}"
                raise ProtocolError(f"a frame of {size_bytes} bytes is {limit}")
            end = LENGTH_BYTES + size_bytes
            if len(self._buffer) < end:
                break
            messages.append(_unpack(bytes(self._buffer[LENGTH_BYTES:end])))
            del self._buffer[:end]
        return messages


def _unpack(body: bytes) -> dict[str, Any]:
    try:
        message = msgpack.unpackb(body, unicode_errors=_SURROGATES, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise ProtocolError(f"a frame of {len(body)} bytes is no msgpack: {error}") from error
    if type(message) is not dict:
        raise ProtocolError(f"expected a msgpack map, got {type(message).__name__}")
    return message

"""Codings of HTTP bodies and gRPC messages: gzip and deflate, both ways. Pure.

Inflating goes piece by piece and stops at a limit, whatever the compressed bytes claim. Only whole
bodies; what comes behind the end of a gzip member is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from naiad.client.requests import Buffer

CODINGS: Final = ("gzip", "deflate")
LEVEL: Final = 1
"""Tensors are dense: more effort costs CPU and gains little."""
COMPRESSED_BYTES_MIN: Final = 128
"""Smaller bodies become larger."""
ACCEPT_CHARS_MAX: Final = 1024
GIVEN_BYTES: Final = 64 * 1024
"""Of the compressed body, at a time."""
PIECE_BYTES: Final = 256 * 1024
"""Of what becomes of it: a millisecond."""

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class InflationFault(Exception):
    """It is not one whole compressed body, or larger than the limit (`is_too_large`)."""

    def __init__(self, text: str, *, is_too_large: bool = False) -> None:
        super().__init__(text)
        self.is_too_large = is_too_large


class Inflation:
    """A body without its coding, piece by piece: whoever takes them can count what they come to.

    A few bytes may stand for a thousand times as many, so that nothing is known beforehand.
    """

    def __init__(self, coding: str, body: Buffer, limit_bytes: int) -> None:
        self._coding = coding
        self._body = memoryview(body)
        self._limit_bytes = limit_bytes
        self._offset = 0
        """Of what the inflater was not given."""
        self._found_bytes = 0
        # "deflate" is zlib's format, but some send the bare one.
        self._windows = [_GZIP_WINDOW] if coding == "gzip" else [-zlib.MAX_WBITS, zlib.MAX_WBITS]
        self._inflater = zlib.decompressobj(self._windows.pop())

    @property
    def is_ended(self) -> bool:
        return self._inflater.eof

    def piece(self) -> bytes:
        """What comes next, at most PIECE_BYTES; b"" behind the end. Raises InflationFault."""
        while not self.is_ended:
            given: Buffer = self._inflater.unconsumed_tail
            if not given:
                given = self._body[self._offset : self._offset + GIVEN_BYTES]
                self._offset += len(given)
            try:
                found = self._inflater.decompress(given, PIECE_BYTES)
            except zlib.error as fault:
                self._begin_again(fault)
                continue
            self._found_bytes += len(found)
            if self.is_ended and (self._inflater.unused_data or self._offset < len(self._body)):
                raise InflationFault(f"the {self._coding} data goes on behind its end")
            if self._found_bytes > self._limit_bytes:
                raise InflationFault(
                    f"more than {self._limit_bytes} bytes when decompressed", is_too_large=True
                )
            if found:
                return found
            if not given:
                raise InflationFault(f"the {self._coding} data ends in the middle")
        return b""

    def _begin_again(self, fault: zlib.error) -> None:
        """In the other format that "deflate" may mean."""
        if self._found_bytes or not self._windows:
            raise InflationFault(f"cannot decompress the {self._coding} data: {fault}") from None
        self._offset = 0
        self._inflater = zlib.decompressobj(self._windows.pop())


def deflated(coding: str, parts: Sequence[Buffer]) -> bytes:
    """All parts as one compressed body."""
    window = _GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, window)
    return b"".join([*(deflater.compress(part) for part in parts), deflater.flush()])


def accepted_coding(header: str) -> str:
    """The coding that an Accept-Encoding header likes best; "" for none."""
    best, best_quality = "", 0.0
    identity_quality = 0.0
    for item in header[:ACCEPT_CHARS_MAX].lower().split(","):
        name, _, rest = item.strip().partition(";")
        name = name.strip()
        quality = _quality(rest)
        if name == "identity":
            identity_quality = quality
        elif name in CODINGS and quality > best_quality:
            best, best_quality = name, quality
    return best if best_quality >= identity_quality and best_quality > 0 else ""


def _quality(rest: str) -> float:
    key, _, value = rest.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        quality = float(value)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0

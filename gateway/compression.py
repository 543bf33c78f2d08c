"""Content codings of HTTP bodies: gzip and deflate, both ways. Pure.

Inflating stops at a limit, whatever the compressed bytes claim. Only whole bodies; what comes
behind the end of a gzip member is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from naiad.client.requests import Buffer
from naiad.protocol.errors import RequestError

CODINGS: Final = ("gzip", "deflate")
LEVEL: Final = 1
"""Tensors are dense: more effort costs CPU and gains little."""
COMPRESSED_BYTES_MIN: Final = 128
"""Smaller bodies become larger."""
ACCEPT_CHARS_MAX: Final = 1024

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_HINT: Final = "Use --http-max-input-size to increase the limit."


def inflated(coding: str, body: Buffer, limit_bytes: int) -> bytes:
    """The body without its coding, at most `limit_bytes`. Raises RequestError."""
    windows = [_GZIP_WINDOW] if coding == "gzip" else [zlib.MAX_WBITS, -zlib.MAX_WBITS]
    for window in windows:  # "deflate" is zlib's format, but some send the bare one
        inflater = zlib.decompressobj(window)
        try:
            found = inflater.decompress(body, limit_bytes + 1)
        except zlib.error as fault:
            if window == windows[-1]:
                raise RequestError(f"cannot decompress the {coding} body: {fault}") from None
            continue
        if len(found) > limit_bytes:
            raise RequestError(
                f"Request body has more than {limit_bytes} bytes when decompressed, the maximum"
                f" allowed value. {_HINT}"
            )
        if not inflater.eof:
            raise RequestError(f"the {coding} body ends in the middle of the data")
        if inflater.unused_data:
            raise RequestError(f"the {coding} body goes on behind its end")
        return found
    raise AssertionError("the last window returns or raises")


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

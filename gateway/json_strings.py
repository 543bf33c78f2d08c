"""One long string of a JSON text, read in pieces. Pure.

A string may be cut where no escape and no character is cut. Only the halves of a surrogate pair
may be parted by that, and come together again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from naiad.gateway.http_parameters import parsed
from naiad.protocol.errors import RequestError

PIECE_BYTES: Final = 64 * 1024
"""Of text, that is read at once: 1 ms where all of it is escapes."""
_ESCAPE_BYTES: Final = 6
_CHARACTER_BYTES: Final = 4
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = b'"'


class LongString:
    """The only string in a part of a text, which begins at `start` and ends before `end`.

    `origin`: see `pieces`. Raises RequestError when there is none, or too much beside it.
    """

    def __init__(
        self, text: memoryview, start: int, end: int, origin: Callable[[int], int] = int
    ) -> None:
        before = bytes(text[start : min(end, start + PIECE_BYTES)])
        found = before.find(_QUOTE)
        if found < 0:
            raise RequestError(
                "failed to parse the request JSON buffer: expected an element of at most"
                f" {PIECE_BYTES} bytes that is no string, got {end - start} at {origin(start)}"
            )
        self._text = text
        self._origin = origin
        self._before_bytes = found + 1
        self._start = start + self._before_bytes
        behind = bytes(text[max(self._start, end - PIECE_BYTES) : end])
        last = behind.rfind(_QUOTE)
        if last < 0:
            raise RequestError(
                "failed to parse the request JSON buffer: expected the end of the string that"
                f" begins at {origin(self._start - 1)} within {PIECE_BYTES} bytes before"
                f" {origin(end)}"
            )
        self._end = end - len(behind) + last
        self.around = before[: self._before_bytes] + behind[last:]
        """The part without what is in the string."""

    def position(self, found: int) -> int:
        """For the client, of a position in `around`."""
        part_start = self._start - self._before_bytes
        skipped = (self._end - self._start) * (found > self._before_bytes)
        return self._origin(part_start + found + skipped)

    def pieces(self) -> Iterator[str]:
        """See `pieces`."""
        return pieces(self._text, self._start, self._end, self._origin)


def pieces(
    text: memoryview, start: int, end: int, origin: Callable[[int], int] = int
) -> Iterator[str]:
    """What from `start` to `end` stands between quotes means.

    `origin`: where something is for the client, of where it is in `text`.

    Raises RequestError for what is no inside of a string.
    """
    half = ""
    while start < end:
        stop = end if end - start <= PIECE_BYTES else _boundary(text, start, start + PIECE_BYTES)
        content = b"".join((_QUOTE, text[start:stop], _QUOTE))
        first = start - 1
        piece = _mended(half, parsed(content, lambda at, first=first: origin(first + at)))  # type: ignore[misc]
        half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        start = stop
        yield piece.removesuffix(half)
    if half:
        yield half


def _boundary(text: memoryview, start: int, stop: int) -> int:
    """Where at `stop` or shortly before it nothing is cut in two."""
    for _ in range(_CHARACTER_BYTES - 1):
        if text[stop] & 0xC0 == 0x80:
            stop -= 1
    tail = bytes(text[stop - _ESCAPE_BYTES + 1 : stop])
    found = tail.find(b"\\")
    if found < 0:
        return stop
    left = tail[found:]
    end = stop - len(left.lstrip(b"\\"))  # of backslashes, the first of which begins an escape
    before = bytes(text[start:end])
    return end - (len(before) - len(before.rstrip(b"\\"))) % 2


def _mended(half: str, piece: str) -> str:
    """The piece with what the one before it ended with."""
    if half and "\udc00" <= piece[:1] <= "\udfff":
        pair = (half + piece[0]).encode("utf-16-le", "surrogatepass")
        return pair.decode("utf-16-le") + piece[1:]
    return half + piece

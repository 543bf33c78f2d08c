"""Large arrays of a JSON text, cut where a parser can take up the thread again. Pure.

A JSON parser cannot stop in the middle. But between two elements of an array a text may be cut:
with the brackets that are open there closed behind one half and opened before the other, both are
arrays, nested as the whole is. So the arrays of `data` are taken out of a text, whose rest is
small, and each becomes slices. What is wrong inside a slice is found by whoever parses it.

Everything that takes long is a generator, which stops after every slice's worth of work.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, NamedTuple

from naiad.gateway.http_parameters import DEPTH_MAX, nested_too_deeply
from naiad.protocol.errors import RequestError

SLICE_BYTES: Final = 64 * 1024
"""Of text: about 2 ms. Shorter arrays are not taken out."""
REST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of a text besides large arrays, which is parsed at once."""
ARRAYS_MAX: Final = 1024
"""Called `data` in one text."""
_COMMAS_MAX: Final = 64
"""That are looked at for one cut."""
_SPACE_BYTES_MAX: Final = 128
"""Around a comma at which a text may be cut."""

_ARRAY: Final = re.compile(rb'"data"\s*:\s*\[')
_BRACKET: Final = re.compile(rb"[\[\]]")
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_STRING: Final = re.compile(rb'"[^"]*(?:"|\Z)')
_NEVER_BEFORE_COMMA: Final = b"[{,:"
_NEVER_BEHIND_COMMA: Final = b"]},:"


class Slice(NamedTuple):
    """Some elements of an array: where, and how many inner arrays are open at both ends."""

    start: int
    end: int
    depth_before: int
    depth_behind: int

    def text(self, whole: memoryview) -> bytes:
        """An array of its own."""
        before, behind = b"[" * (1 + self.depth_before), b"]" * (1 + self.depth_behind)
        return b"".join((before, whole[self.start : self.end], behind))

    def position(self, found: int) -> int:
        """In the whole text, of a position in that of the slice."""
        return self.start + min(max(0, found - 1 - self.depth_before), self.end - self.start)


class Cut:
    """A text without its large arrays. In place of each is an array of one string, its mark."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._parts: list[bytes] = []
        self._size = 0
        self._arrays: list[tuple[int, int]] = []
        """Where each one's mark begins in the rest, and how much shorter than it that is."""
        self.slices: dict[str, list[Slice]] = {}
        """By mark."""

    @property
    def rest(self) -> bytes:
        return b"".join(self._parts)

    def position(self, found: int) -> int:
        """In the whole text, of a position in the rest."""
        return found + sum(less for start, less in self._arrays if found > start)

    def keep(self, part: bytes) -> None:
        """Raises RequestError when what is kept gets too much."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > REST_BYTES_MAX:
            raise RequestError(
                f"failed to parse the request JSON buffer: expected at most {REST_BYTES_MAX} bytes"
                f" besides long arrays of 'data', got {self._size}"
            )

    def take_out(self, slices: list[Slice]) -> None:
        mark = f"{self._mark}{len(self.slices)}"
        text = f'"{mark}"'.encode()
        self._arrays.append((self._size, slices[-1].end - slices[0].start - len(text)))
        self.slices[mark] = slices
        self.keep(text)


def cut_out(text: memoryview, mark: str) -> Generator[None, None, Cut]:
    """The large arrays of `text`. `mark`: letters that nobody could guess.

    Raises RequestError for a text that cannot be read without holding up others.
    """
    cut = Cut(mark)
    position = 0
    for _ in range(ARRAYS_MAX):
        found = _ARRAY.search(text, position, position + REST_BYTES_MAX + 1)
        if found is None:
            cut.keep(bytes(text[position : position + REST_BYTES_MAX + 1]))
            return cut
        slices = yield from _slices(text, found.end())
        end = slices[-1].end
        if end - found.end() < SLICE_BYTES:
            cut.keep(bytes(text[position:end]))
        else:
            cut.keep(bytes(text[position : found.end()]))
            cut.take_out(slices)
        position = end
        yield
    raise RequestError(
        "failed to parse the request JSON buffer: expected fewer than"
        f" {ARRAYS_MAX} arrays of 'data' in {len(text)} bytes of JSON"
    )


def _slices(text: memoryview, start: int) -> Generator[None, None, list[Slice]]:
    """Those of the array whose first element begins at `start`, up to its bracket."""
    slices: list[Slice] = []
    depth = 0
    while True:
        size = SLICE_BYTES
        while True:
            window = bytes(text[start : start + size])
            bare = _without_strings(window) if b'"' in window else window
            length = _end_of_array(bare, depth)
            is_last = length >= 0
            if not is_last and start + size >= len(text):  # without an end; the parser says so
                length, is_last = len(bare), True
            elif not is_last:
                length = _last_cut(bare)
            if is_last or length:
                break
            size *= 2
            yield
        opened = depth + bare.count(b"[", 0, length) - bare.count(b"]", 0, length)
        if max(opened, depth) > DEPTH_MAX:
            raise nested_too_deeply()
        slices.append(Slice(start, start + length, depth, 0 if is_last else opened))
        if is_last:
            return slices
        start += length + 1
        depth = opened
        yield


def _without_strings(window: bytes) -> bytes:
    """As long as before, with nothing in its strings that means something outside of them."""

    def blank(found: re.Match[bytes]) -> bytes:
        size = found.end() - found.start()
        return b'""' + b"_" * (size - 2) if size > 1 else b'"'

    return _STRING.sub(blank, _ESCAPE.sub(b"__", window))


def _end_of_array(bare: bytes, depth: int) -> int:
    """Where the bracket is that closes it, -1 if that comes later."""
    if bare.count(b"]") <= depth:
        return -1
    for found in _BRACKET.finditer(bare):
        depth += 1 if found[0] == b"[" else -1
        if depth < 0:
            return found.start()
    return -1


def _last_cut(bare: bytes) -> int:
    """Where the last comma is that has an element on both sides; 0: nowhere."""
    position = len(bare)
    for _ in range(_COMMAS_MAX):
        position = bare.rfind(b",", 0, position)
        if position <= 0:
            return 0
        before = bare[max(0, position - _SPACE_BYTES_MAX) : position].rstrip()[-1:]
        behind = bare[position + 1 : position + 1 + _SPACE_BYTES_MAX].lstrip()[:1]
        is_behind_one = before and before not in _NEVER_BEFORE_COMMA
        if is_behind_one and behind and behind not in _NEVER_BEHIND_COMMA:
            return position
    return 0

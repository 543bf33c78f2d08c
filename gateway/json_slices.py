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
from typing import Final, Generic, NamedTuple, TypeVar

from naiad.gateway.http_parameters import DEPTH_MAX, nested_too_deeply
from naiad.protocol.errors import RequestError

SLICE_BYTES: Final = 64 * 1024
"""Of text: about 2 ms."""
SLICE_MARKS_MAX: Final = 8192
"""Commas, quotes and opening brackets in a slice: short elements cost far more than their bytes."""
BRACKETS_MAX: Final = 4096
"""Opening ones in a slice: finding where they belong costs far more than parsing them."""
WHOLE_BYTES_MAX: Final = 2 * SLICE_BYTES
"""Of a slice that is parsed at once. A longer one has one element: see json_strings."""
ARRAY_BYTES_MIN: Final = 256
"""Shorter arrays are not taken out."""
REST_BYTES_MAX: Final = 256 * 1024
"""Of a text besides those arrays: what it is parsed to takes up to 20 times its size."""
ARRAYS_MAX: Final = 1024
"""Called `data` in one text."""
_FIRST_BYTES: Final = 1024
"""Of an array that are looked at first: most of those of a text with many are short."""
_BLOCK_BYTES: Final = 4096
"""Whose brackets are looked at together."""
_COMMAS_MAX: Final = 64
"""That are looked at for one cut."""
SPACE_BYTES_MAX: Final = 128
"""Around a comma at which a text may be cut. Longer runs are gone before: see json_spaces."""

_ARRAY: Final = re.compile(rb'"data"\s*:\s*\[')
_ESCAPE: Final = b"\\u00"
"""A key may be written with it, for which one looks five times as long."""
_ESCAPED_ARRAY: Final = re.compile(
    rb'"(?:d|\\u0064)(?:a|\\u0061)(?:t|\\u0074)(?:a|\\u0061)"\s*:\s*\['
)
_BRACKET: Final = re.compile(rb"[\[\]]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]"))
_NEVER_BEFORE_COMMA: Final = b"[{,:"
_NEVER_BEHIND_COMMA: Final = b"]},:"


class Slice(NamedTuple):
    """Some elements of an array: where, and how many inner arrays are open at both ends."""

    start: int
    end: int
    depth_before: int
    depth_behind: int

    def text(self, elements: bytes | memoryview) -> bytes:
        """An array of its own, of these elements."""
        before, behind = b"[" * (1 + self.depth_before), b"]" * (1 + self.depth_behind)
        return b"".join((before, elements, behind))

    def position(self, found: int) -> int:
        """Among its elements, of a position in that array."""
        return min(max(0, found - 1 - self.depth_before), self.end - self.start)

    @property
    def is_long(self) -> bool:
        """It cannot be parsed at once, and is one element."""
        return self.end - self.start > WHOLE_BYTES_MAX


T = TypeVar("T")


class Cut(Generic[T]):
    """A text without what is large in it. In place of each part there is a string, its mark."""

    def __init__(self, mark: str, besides: str) -> None:
        self._mark = mark
        self._besides = besides
        self._parts: list[bytes] = []
        self._size = 0
        self._gaps: list[tuple[int, int]] = []
        """Where each one's mark begins in the rest, and how much shorter than it that is."""
        self.taken: dict[str, T] = {}
        """By mark."""

    @property
    def rest(self) -> bytes:
        return b"".join(self._parts)

    def position(self, found: int) -> int:
        """In the whole text, of a position in the rest."""
        return found + sum(less for start, less in self._gaps if found > start)

    def keep(self, part: bytes) -> None:
        """Raises RequestError when what is kept gets too much."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > REST_BYTES_MAX:
            raise RequestError(
                f"failed to parse the request JSON buffer: expected at most {REST_BYTES_MAX} bytes"
                f" besides {self._besides}, got {self._size} or more"
            )

    def take_out(self, size: int, what: T, quote: str = '"') -> None:
        """So many bytes of the text. `quote`: "" where they are inside of quotes."""
        mark = f"{self._mark}{len(self.taken)}"
        text = f"{quote}{mark}{quote}".encode()
        self._gaps.append((self._size, size - len(text)))
        self.taken[mark] = what
        self.keep(text)


def cut_out(text: memoryview, mark: str) -> Generator[None, None, Cut[list[Slice]]]:
    """The text without its large arrays of `data`. `mark`: letters that nobody could guess.

    Raises RequestError for a text that cannot be read without holding up others.
    """
    cut: Cut[list[Slice]] = Cut(mark, "arrays of 'data'")
    position, pattern = 0, _ARRAY
    for _ in range(ARRAYS_MAX + 1):
        stop = position + REST_BYTES_MAX + 1
        found = pattern.search(text, position, stop)
        before = bytes(text[position : stop if found is None else found.start()])
        if pattern is _ARRAY and _ESCAPE in before:
            pattern = _ESCAPED_ARRAY
            found = pattern.search(text, position, stop)
        if found is None:
            cut.keep(bytes(text[position:stop]))
            return cut
        slices = yield from _slices(text, found.end())
        end = slices[-1].end
        if end - found.end() < ARRAY_BYTES_MIN:
            cut.keep(bytes(text[position:end]))
        else:
            cut.keep(bytes(text[position : found.end()]))
            cut.take_out(end - slices[0].start, slices)
        position = end
        yield
    raise RequestError(
        "failed to parse the request JSON buffer: expected at most"
        f" {ARRAYS_MAX} arrays of 'data' in {len(text)} bytes of JSON"
    )


def _slices(text: memoryview, start: int) -> Generator[None, None, list[Slice]]:
    """Those of the array whose first element begins at `start`, up to its bracket."""
    slices: list[Slice] = []
    first, first_depth, depth = start, 0, 0
    is_inside = False  # of a string, at `start`
    before = b""  # the last byte between `first` and `start` that is no space
    size = _FIRST_BYTES
    while True:
        window = window_of(text, start, size)
        stop = start + len(window)
        bare, ends_inside = without_strings(window, is_inside)
        length, depth_behind = _end_of_array(bare, depth)
        if length < 0 and stop == len(text):  # without an end; the parser says so
            length = len(bare)
        if length >= 0 and (first == start or _first_cut(bare[:length], before) < 0):
            slices.append(Slice(first, start + length, first_depth, 0))
            return slices
        if size == _FIRST_BYTES:
            size = SLICE_BYTES
            continue
        size = min(SLICE_BYTES, 2 * len(window))
        # What has begun in an earlier window is long: nothing else comes into its slice.
        length = _last_cut(bare) if first == start else _first_cut(bare, before)
        if length >= 0:
            depth += bare.count(b"[", 0, length) - bare.count(b"]", 0, length)
            slices.append(Slice(first, start + length, first_depth, depth))
            start += length + 1
            first, first_depth, is_inside, before = start, depth, False, b""
        else:
            left = bare.rstrip()
            if left.endswith(b",") and len(left) > 1:  # what is behind it is to be seen with it
                stop = start + len(left) - 1
                left = left[:-1].rstrip()
            start, depth, is_inside = stop, depth_behind, ends_inside
            before = left[-1:] or before
        yield


def window_of(text: memoryview, start: int, size: int) -> bytes:
    """So much of it, less if there is much in it, and without the half of an escape."""
    window = bytes(text[start : start + size])
    while _marks(window) > SLICE_MARKS_MAX or window.count(b"[") > BRACKETS_MAX:
        window = window[: len(window) // 2]
    if window.endswith(b"\\") and start + len(window) < len(text):
        backslashes = len(window) - len(window.rstrip(b"\\"))
        window = window[: len(window) - backslashes % 2]
    return window


def _marks(window: bytes) -> int:
    return window.count(b",") + window.count(b'"') + window.count(b"[")


def without_strings(window: bytes, is_inside: bool) -> tuple[bytes, bool]:
    """As long as before, with nothing in its strings that means something outside of them.

    `is_inside`: it begins inside of one. Also whether it ends inside of one.
    """
    if b"\\" in window:
        window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    parts = window.split(b'"')
    strings = slice(0 if is_inside else 1, None, 2)
    parts[strings] = [b"_" * len(part) for part in parts[strings]]
    return b'"'.join(parts), is_inside ^ (len(parts) % 2 == 0)


def _end_of_array(bare: bytes, depth: int) -> tuple[int, int]:
    """Where the bracket is that closes it, -1 if that comes later, and the depth behind.

    Raises RequestError where it is nested too deeply.
    """
    for start in range(0, len(bare), _BLOCK_BYTES):
        block = bare[start : start + _BLOCK_BYTES]
        left = _unmatched(block)
        closed = left.count(b"]")
        if closed > depth:
            for found in _BRACKET.finditer(block):
                depth += 1 if found[0] == b"[" else -1
                if depth < 0:
                    return start + found.start(), 0
        depth += len(left) - 2 * closed
        if depth > DEPTH_MAX:
            raise nested_too_deeply()
    return -1, depth


def _unmatched(block: bytes) -> bytes:
    """Its brackets without those that belong together: some that close, some that open."""
    left = block.translate(None, _NO_BRACKETS)
    for _ in range(DEPTH_MAX + 1):
        if b"[]" not in left:
            return left
        left = left.replace(b"[]", b"")
    raise nested_too_deeply()


def _last_cut(bare: bytes) -> int:
    """Where the last comma is that has an element on both sides; -1: nowhere."""
    position = len(bare)
    for _ in range(_COMMAS_MAX):
        position = bare.rfind(b",", 0, position)
        if position < 0 or _is_between(bare, position, b""):
            return position
    return -1


def _first_cut(bare: bytes, before: bytes) -> int:
    """Where the first such comma is. `before`: what precedes `bare`."""
    position = -1
    for _ in range(_COMMAS_MAX):
        position = bare.find(b",", position + 1)
        if position < 0 or _is_between(bare, position, before):
            return position
    return -1


def _is_between(bare: bytes, position: int, before: bytes) -> bool:
    """Whether the comma there has an element on both sides."""
    start = max(0, position - SPACE_BYTES_MAX)
    before = bare[start:position].rstrip()[-1:] or (b"" if start else before)
    behind = bare[position + 1 : position + 1 + SPACE_BYTES_MAX].lstrip()[:1]
    is_behind_one = before and before not in _NEVER_BEFORE_COMMA
    return bool(is_behind_one and behind and behind not in _NEVER_BEHIND_COMMA)

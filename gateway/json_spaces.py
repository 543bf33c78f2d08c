"""A JSON text without its long runs of spaces, which mean nothing and would fill its slices. Pure.

Most texts have none, which is found out quickly; the others are copied. Owns what is long, and
knows where something was before.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Generator
from typing import Final

from naiad.gateway.json_slices import SLICE_BYTES, SPACE_BYTES_MAX, window_of, without_strings

_WINDOWS_PER_STEP: Final = 8
_LONG: Final = b" " * SPACE_BYTES_MAX
_ALIKE: Final = bytes.maketrans(b"\t\n\r", b"   ")
_RUN: Final = re.compile(b" +")


class Squeezed:
    """`text`, in which each long run is one space; `position` in the given one."""

    def __init__(self, given: memoryview) -> None:
        self._given = given
        self._starts: list[int] = []
        """Of windows, in `text`."""
        self._windows: list[tuple[int, int, bool]] = []
        """From, to, and whether inside of a string, in what was given."""
        self._kept = bytearray()

    @property
    def text(self) -> memoryview:
        return memoryview(self._kept) if self._windows else self._given

    def add(self, window: bytes, start: int, is_inside: bool) -> bool:
        """The next window. Whether it ends inside of a string."""
        self._starts.append(len(self._kept))
        self._windows.append((start, start + len(window), is_inside))
        runs, ends_inside = _runs(window, is_inside)
        position = 0
        for first, end in runs:
            self._kept += window[position : first + 1]
            position = end
        self._kept += window[position:]
        return ends_inside

    def position(self, found: int) -> int:
        """In the text that was given, of a position in `text`."""
        if not self._windows:
            return found
        index = max(0, bisect_right(self._starts, found) - 1)
        start, end, is_inside = self._windows[index]
        position = found - self._starts[index]
        for first, stop in _runs(bytes(self._given[start:end]), is_inside)[0]:
            if position > first:
                position += stop - first - 1
        return start + position


def squeezed(text: memoryview) -> Generator[None, None, Squeezed]:
    """The text without long runs of spaces outside of strings."""
    found = Squeezed(text)
    if not (yield from _has_long(text)):
        return found
    start, size, is_inside = 0, SLICE_BYTES, False
    while start < len(text):
        window = window_of(text, start, size)
        size = min(SLICE_BYTES, 2 * len(window))
        is_inside = found.add(window, start, is_inside)
        start += len(window)
        yield
    return found


def _has_long(text: memoryview) -> Generator[None, None, bool]:
    """Whether there are such runs, in strings or outside."""
    for count, start in enumerate(range(0, len(text), SLICE_BYTES), 1):
        window = bytes(text[start : start + SLICE_BYTES + SPACE_BYTES_MAX])
        if _LONG in window.translate(_ALIKE):
            return True
        if count % _WINDOWS_PER_STEP == 0:
            yield
    return False


def _runs(window: bytes, is_inside: bool) -> tuple[list[tuple[int, int]], bool]:
    """Where long ones begin and end; whether the window ends inside of a string."""
    bare, ends_inside = without_strings(window, is_inside)
    blank = bare.translate(_ALIKE)
    runs: list[tuple[int, int]] = []
    position = 0
    while (first := blank.find(_LONG, position)) >= 0:
        match = _RUN.match(blank, first)
        assert match is not None
        position = match.end()
        runs.append((first, position))
    return runs, ends_inside

"""JSON as Triton's parser takes it: with words for numbers that Python's does not know. Pure.

Those are `Inf`, `-Inf` and `-NaN` (both know `Infinity` and `NaN`), and a byte order mark in front.
Python's parser stops at the first one; only then the text is written out for it, so all others cost
nothing. Owns where things are in the text that was given.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final, TypeVar

BYTE_ORDER_MARK: Final = "\ufeff"

_WORD: Final = re.compile("Inf|-Inf|-NaN")
_WORD_OR_STRING: Final = re.compile(r'Inf(?!inity)|-NaN|"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_WRITTEN: Final = {"Inf": "Infinity", "-NaN": "NaN"}
_DECODER: Final = json.JSONDecoder()

T = TypeVar("T")


def loads(text: str) -> Any:
    """The value that a text is. Raises as json does."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as fault:
        return _again(text, fault, json.loads)[0]


def raw_decode(text: str) -> tuple[Any, int]:
    """The value that a text begins with, and where it ends. Raises as json does."""
    try:
        return _DECODER.raw_decode(text)
    except json.JSONDecodeError as fault:
        (found, end), written = _again(text, fault, _DECODER.raw_decode)
        return found, written.position(end)


def without_mark(text: str) -> str:
    """A space in place of a byte order mark, so that everything stays where it is."""
    return " " + text[1:] if text.startswith(BYTE_ORDER_MARK) else text


def _again(
    text: str, fault: json.JSONDecodeError, parse: Callable[[str], T]
) -> tuple[T, _WrittenOut]:
    """What a parser makes of the text when its words are written out, if they are its fault."""
    if not (_WORD.match(text, fault.pos) or text.startswith(BYTE_ORDER_MARK)):
        raise fault
    written = _WrittenOut(without_mark(text))
    try:
        return parse(written.text), written
    except json.JSONDecodeError as left:
        raise json.JSONDecodeError(left.msg, text, written.position(left.pos)) from None


class _WrittenOut:
    """`text`, in Python's words."""

    def __init__(self, given: str) -> None:
        self._ends: list[int] = []
        """Of words, in `text`."""
        self._longer = [0]
        """By how much it is longer than what was given, before each of these and behind all."""
        self.text = _WORD_OR_STRING.sub(self._written, given)

    def _written(self, found: re.Match[str]) -> str:
        given = found[0]
        word = _WRITTEN.get(given)
        if word is None:
            return given
        longer = self._longer[-1] + len(word) - len(given)
        self._longer.append(longer)
        self._ends.append(found.end() + longer)
        return word

    def position(self, found: int) -> int:
        """In what was given, of a position in `text`."""
        return found - self._longer[bisect_right(self._ends, found)]

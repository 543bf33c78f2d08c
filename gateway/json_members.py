"""A JSON object whose members are parsed one after the other, and theirs in turn. Pure.

A parser cannot stop in the middle of a value, so the two outermost levels are walked here and only
what is inside of them is given to it: an input, an output, a parameter. Owns how large one of these
may be. A generator, which stops after about a millisecond's work each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, Final

from naiad.gateway import json_words
from naiad.gateway.calls import TENSORS_MAX
from naiad.gateway.http_parameters import Json, check_unicode, kind_of, may_have_halves
from naiad.protocol.errors import RequestError

VALUE_CHARS_MAX: Final = 24 * 1024
"""Of an input, an output or any other value inside of a member: 2 ms if it is full of numbers."""
STRING_CHARS_MAX: Final = 256 * 1024
"""Of such a value that is a string: 1 ms. Far more than any may have; whoever knows what it is
says how much that is."""
SHORT_CHARS: Final = 64
"""That are given to the parser first: most values are short, and what it is given is copied."""
_GROWTH: Final = 8
"""Of what it is given next, when that is not the whole value."""
VALUES_MAX: Final = 4096
"""In all members together, each 3 µs: twice what a call with TENSORS_MAX inputs and outputs has."""
STEP_CHARS: Final = 12 * 1024
STEP_VALUES: Final = 256
"""Walked through at once."""
_TOKEN_CHARS: Final = 16
"""More than a parser looks ahead."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_KEY_EXPECTED: Final = "Expecting property name enclosed in double quotes"


def members(text: str, wanted: frozenset[str]) -> Generator[None, None, Json]:
    """The object that the text is, with those of its members that are wanted.

    Each of these holds TENSORS_MAX values at most. The others are looked at and let go.

    Raises ValueError as json does, RecursionError, and RequestError for too many values.
    """
    walk = _Walk(json_words.without_mark(text))
    found: Json = {}
    if walk.here() != "{":
        # An array may be too large to be looked at.
        kind = "an array" if walk.here() == "[" else kind_of(walk.value())
        raise RequestError(
            f"failed to parse the request JSON buffer: expected an object, got {kind}"
        )
    for _ in walk.separated("}"):
        key = walk.key()
        if walk.here() in ("[", "{"):
            value = yield from _inside(walk, key, key in wanted)
        else:
            value = walk.value()
        if key in wanted:
            found[key] = value
        if walk.is_tired():
            yield
    if walk.here():
        raise walk.fault("Extra data")
    return found


def _inside(walk: _Walk, key: str, is_wanted: bool) -> Generator[None, None, Any]:
    """An array or an object; empty when nobody wants it."""
    is_array = walk.here() == "["
    values: list[Any] = []
    pairs: Json = {}
    for count, _ in enumerate(walk.separated("]" if is_array else "}"), 1):
        if is_wanted and count > TENSORS_MAX:
            raise RequestError(
                f"Unable to parse '{key}': expected at most {TENSORS_MAX} values, got {count} or"
                " more"
            )
        name = "" if is_array else walk.key()
        value = walk.value()
        if is_wanted and is_array:
            values.append(value)
        elif is_wanted:
            pairs[name] = value
        if walk.is_tired():
            yield
    return values if is_array else pairs


class _Walk:
    """Where we are in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._may_have_halves = may_have_halves(text)
        self._index = 0
        self._values = 0
        self._rest_values = 0
        self._rest_index = 0

    def is_tired(self) -> bool:
        """Whether it is time for others."""
        is_short = self._index - self._rest_index < STEP_CHARS
        if is_short and self._values - self._rest_values < STEP_VALUES:
            return False
        self._rest_values, self._rest_index = self._values, self._index
        return True

    def here(self) -> str:
        """The next character that is no space; "" behind the last."""
        match = _SPACE.match(self._text, self._index)
        if match is not None:
            self._index = match.end()
        return self._text[self._index : self._index + 1]

    def fault(self, what: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(what, self._text, self._index)

    def separated(self, end: str) -> Generator[None, None, None]:
        """Before each of what is between brackets, the first of which is here."""
        self._index += 1
        if self.here() == end:
            self._index += 1
            return
        while True:
            self._values += 1
            if self._values > VALUES_MAX:
                raise self.fault(f"Expecting at most {VALUES_MAX} values, got more")
            yield
            sign = self.here()
            if sign != end and sign != ",":
                raise self.fault("Expecting ',' delimiter")
            self._index += 1
            if sign == end:
                return

    def key(self) -> str:
        """And the colon behind it."""
        if self.here() != '"':
            raise self.fault("Expecting property name enclosed in double quotes")
        key: str = self._decoded(VALUE_CHARS_MAX)
        if self.here() != ":":
            raise self.fault("Expecting ':' delimiter")
        self._index += 1
        return key

    def value(self) -> Any:
        """The next one, whole."""
        return self._decoded(STRING_CHARS_MAX if self.here() == '"' else VALUE_CHARS_MAX)

    def _decoded(self, chars_max: int) -> Any:
        size = SHORT_CHARS
        while (decoded := self._decoded_within(min(size, chars_max))) is None:
            if size >= chars_max:
                raise self.fault(f"Expecting at most {chars_max} characters in a value, got more")
            size *= _GROWTH
        return decoded[0]

    def _decoded_within(self, chars_max: int) -> tuple[Any] | None:
        """The value; None when it may be longer."""
        start = self._index
        part = self._text[start : start + chars_max]
        is_cut = start + chars_max < len(self._text)
        try:
            found, end = json_words.raw_decode(part)
        except json.JSONDecodeError as fault:
            is_at_end = fault.pos > len(part) - _TOKEN_CHARS
            if is_cut and (is_at_end or fault.msg.startswith("Unterminated")):
                return None
            self._index += fault.pos
            raise self.fault(fault.msg) from None
        except ValueError:  # a number of too many digits, of which there may be more
            if is_cut:
                return None
            raise
        if is_cut and end == len(part):
            return None
        if self._may_have_halves and may_have_halves(part[:end]):
            check_unicode(found)
        self._index += end
        return (found,)

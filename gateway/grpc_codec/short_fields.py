"""Where a run of short fields ends: of millions, faster than one after the other. Pure.

A field's end is known only once its start is, so no search finds it; a regular expression that is
one field, repeated, walks them at the speed of C. It says nothing of what the fields mean, and
nothing of one that is not short: `next_field` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from naiad.client.requests import Buffer
from naiad.gateway.grpc_codec.wire import BYTES, FIXED32, FIXED64, VARINT

SHORT_BYTES_MAX: Final = 127
"""Of what is in a field that says how long it is."""


def run_end(data: Buffer, position: int, end: int) -> int:
    """Where the last of the short fields ends that begin here and lie before `end` one behind the
    other; `position` where there is none."""
    found = _RUN.match(data, position, end)
    assert found is not None  # none is a run as well
    return found.end()


def _one_of(numbers: Iterable[int]) -> bytes:
    return b"[" + b"".join(re.escape(bytes((number,))) for number in numbers) + b"]"


def _tag(kind: int) -> bytes:
    whole, first = _one_of(range(kind, 0x80, 8)), _one_of(range(0x80 | kind, 0x100, 8))
    return b"(?:" + whole + b"|" + first + rb"[\x80-\xff]{0,8}+[\x00-\x7f])"


def _sized() -> bytes:
    """A size in one byte, or in more than it needs, and so many bytes."""
    sizes = range(SHORT_BYTES_MAX + 1)
    short = [re.escape(bytes((size,))) + b".{%d}" % size for size in sizes]
    longer = [
        re.escape(bytes((0x80 | size,))) + rb"\x80{0,8}+\x00" + b".{%d}" % size for size in sizes
    ]
    return b"(?:" + b"|".join(short + longer) + b")"


_RUN: Final = re.compile(
    b"(?:"
    + b"|".join(
        (
            _tag(BYTES) + _sized(),
            _tag(VARINT) + rb"[\x80-\xff]{0,9}+[\x00-\x7f]",
            _tag(FIXED32) + b".{4}",
            _tag(FIXED64) + b".{8}",
        )
    )
    + b")*",
    re.DOTALL,
)
"""Not possessive as a whole: before CPython 3.11.5 such a group ends inside of what did not match.
It never goes back either, as there is nothing behind it that could fail."""

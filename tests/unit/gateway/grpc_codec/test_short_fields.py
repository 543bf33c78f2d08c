"""Runs of short fields end where looking at one field after the other says so."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from naiad.gateway.grpc_codec.short_fields import SHORT_BYTES_MAX, run_end
from naiad.gateway.grpc_codec.wire import BYTES, next_field, varint
from naiad.protocol.errors import RequestError


@st.composite
def numbers(draw: st.DrawFn, most: int) -> bytes:
    """One, perhaps in more bytes than it needs."""
    short = varint(draw(st.integers(0, most)))
    more = draw(st.integers(0, 11 - len(short)))
    if not more:
        return short
    return short[:-1] + bytes((short[-1] | 0x80,)) + b"\x80" * (more - 1) + b"\0"


@st.composite
def some_fields(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([2, 2, 0, 1, 5]))
    number = draw(st.sampled_from([0, 1, 2, 7, 8, 15, 16, 2**28]))
    tag = varint(number << 3 | kind)
    if draw(st.booleans()):
        tag = tag[:-1] + bytes((tag[-1] | 0x80,)) + b"\x80" * draw(st.integers(0, 9)) + b"\0"
    if kind == 0:
        return tag + draw(numbers(2**64 - 1))
    if kind != BYTES:
        return tag + bytes(8 if kind == 1 else 4)
    size = draw(st.integers(0, 140))
    more = draw(st.integers(0, 9))
    length = varint(size)
    if more:
        length = length[:-1] + bytes((length[-1] | 0x80,)) + b"\x80" * (more - 1) + b"\0"
    return tag + length + draw(st.sampled_from([b"\n", b"\xff", b"\0", b"B"])) * size


def looked_at(data: bytes, position: int, end: int) -> int:
    """What `run_end` is to find."""
    try:
        while position < end:
            tag, start, stop = next_field(data, position, end)
            if tag & 7 == BYTES and stop - start > SHORT_BYTES_MAX:
                break
            position = stop
    except RequestError:
        pass
    return position


@given(st.one_of(st.lists(some_fields(), max_size=20).map(b"".join), st.binary(max_size=60)))
@example(b"\x42\x7f" + b"\n" * 127 + b"\x42\x80\x01" + b"x" * 128)
@example(b"\x0b\x42\x00")
@example(b"\x42\x00\x42")
def test_any_fields(data: bytes) -> None:
    for view in (data, memoryview(data)):
        assert run_end(view, 0, len(data)) == looked_at(data, 0, len(data))
    half = len(data) // 2
    assert run_end(data, 0, half) == looked_at(data[:half], 0, half)
    assert run_end(data, half, len(data)) == looked_at(data, half, len(data))


@pytest.mark.parametrize("kind", range(8))
def test_every_kind_of_field(kind: int) -> None:
    for number in (0, 1, 8, 15, 16, 2000):
        for size in range(SHORT_BYTES_MAX + 2):
            data = varint(number << 3 | kind) + varint(size) + bytes(128)
            for end in (len(data), 9):
                assert run_end(data, 0, end) == looked_at(data[:end], 0, end)

"""Messages between the broker and the repository helper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.config.frames import FRAME_BYTES_MAX, FrameReader, pack_frame
from naiad.protocol.errors import ProtocolError

MESSAGES: list[dict[str, object]] = [
    {"id": 1},
    {"id": 2, "name": "m\udcff", "big": 2**64 - 1, "list": [None, True, "é"]},
]


@given(st.integers(1, 60))
def test_messages_arrive_whole_however_they_are_cut(size_bytes: int) -> None:
    data = b"".join(map(pack_frame, MESSAGES))
    reader = FrameReader()
    found = []
    for start in range(0, len(data), size_bytes):
        found += reader.feed(data[start : start + size_bytes])

    assert found == MESSAGES
    assert reader.is_empty


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), "over the limit"),
        (b"\0\0\0\1\xc1", "no msgpack"),
        (b"\0\0\0\2\x01\x01", "no msgpack"),
        (b"\0\0\0\1\x01", "expected a msgpack map, got int"),
        (b"\0\0\0\3\xd4\x01\x00", "no msgpack"),
    ],
)
def test_a_broken_stream_is_a_typed_error(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        FrameReader().feed(data)


def test_a_message_over_the_limit_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("naiad.config.frames.FRAME_BYTES_MAX", 10)

    with pytest.raises(ProtocolError, match="over the limit of 10"):
        pack_frame({"x": "y" * 20})


def test_part_of_a_message_is_not_empty() -> None:
    reader = FrameReader()

    assert reader.feed(b"\0\0") == []
    assert not reader.is_empty

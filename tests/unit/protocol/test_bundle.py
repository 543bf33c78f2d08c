"""Several messages in one."""

from __future__ import annotations

import pytest

from naiad.protocol import messages as m
from naiad.protocol.bundle import BUNDLE_MESSAGES_MAX, bundled, unbundled
from naiad.protocol.codec import decode
from naiad.protocol.errors import ProtocolError


def test_what_is_bundled_comes_out_again() -> None:
    messages: list[tuple[bytes, list[bytes]]] = [
        (b"one", []),
        (b"two", [b"a", b"b"]),
        (b"3", [b""]),
    ]
    header, payload = bundled(messages)
    bundle = decode(header, [len(frame) for frame in payload])
    assert bundle == m.Bundle((0, 2, 1))
    assert unbundled(bundle, payload) == messages


def test_one_message_stays_as_it_is() -> None:
    assert bundled([(b"one", [b"a"])]) == (b"one", [b"a"])


@pytest.mark.parametrize(
    ("counts", "frames", "said"),
    [
        ((0, 2), 3, "expected 4 payload frames, got 3"),
        ((0,), 2, "expected 1 payload frames, got 2"),
        ((0,) * (BUNDLE_MESSAGES_MAX + 1), BUNDLE_MESSAGES_MAX + 1, "at most 64 messages, got 65"),
        ((2**60,), 1, "payload frames, got 1"),
    ],
)
def test_what_does_not_add_up_is_refused(counts: tuple[int, ...], frames: int, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        unbundled(m.Bundle(counts), [b""] * frames)

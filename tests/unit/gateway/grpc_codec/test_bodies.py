"""Heads, messages in bodies, and what ends a call."""

from __future__ import annotations

from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.gateway.grpc_codec import messages as codec
from naiad.gateway.grpc_codec.head import error_end, fault_end, head_of
from naiad.gateway.grpc_codec.messages import (
    LARGE_BYTES,
    Assembler,
    MessageFault,
    framed_head,
    inflation,
)
from naiad.gateway.grpc_codec.status import Status
from naiad.gateway.memory import memory_for
from naiad.protocol.errors import Code, Unavailable

FIELDS = [(b":method", b"POST"), (b":path", b"/s/m"), (b"content-type", b"application/grpc")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"5S", 5),
        (b"100m", 0.1),
        (b"7u", 7e-6),
        (b"99999999n", 0.099999999),
        (b"", None),
        (b"5", None),
        (b"999999999S", None),
        (b"-1S", None),
    ],
)
def test_timeouts(text: bytes, seconds: float | None) -> None:
    assert head_of([*FIELDS, (b"grpc-timeout", text)]).timeout_seconds == pytest.approx(seconds)


def test_a_callers_own_metadata() -> None:
    head = head_of([*FIELDS, (b"te", b"trailers"), (b"x-user", b"u"), (b"grpc-encoding", b"gzip")])

    assert head.metadata == ((b"x-user", b"u"),)
    assert (head.path, head.coding, head.http_status) == (b"/s/m", "gzip", 200)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(b":method", b"GET"), *FIELDS[1:]], 405),
        (FIELDS[:2], 415),
        ([*FIELDS[:2], (b"content-type", b"application/json")], 415),
        ([], 405),
    ],
)
def test_what_is_no_call(fields: list[tuple[bytes, bytes]], status: int) -> None:
    assert head_of(fields).http_status == status


def decoded(block: bytes) -> dict[Any, Any]:
    return dict(hpack.Decoder().decode(block))


def test_how_a_call_fails() -> None:
    block = error_end(Unavailable("voll: ü\n%", code=Code.QUEUE_FULL), is_all=True)

    assert decoded(block) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "14",
        "grpc-message": "voll: %C3%BC%0A%25",
        "naiad-code": "queue_full",
    }
    later = decoded(fault_end(Status.CANCELLED, "", is_all=False))
    assert later == {"grpc-status": "1", "grpc-message": ""}


@given(
    st.lists(st.binary(max_size=50), max_size=6),
    st.lists(st.integers(0, 300), max_size=8),
    st.sampled_from([1, 20, 1000]),
)
def test_messages_however_they_are_cut(
    messages: list[bytes], cuts: list[int], large_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "LARGE_BYTES", large_bytes)
        check_cut(messages, cuts)


def check_cut(messages: list[bytes], cuts: list[int]) -> None:
    body = b"".join(framed_head(len(one)) + one for one in messages)
    edges = sorted(min(cut, len(body)) for cut in cuts)
    one = Assembler(1000, memory_for)
    found = []
    for start, end in zip([0, *edges], [*edges, len(body)], strict=True):
        if end > start:
            found += one.feed(memoryview(body)[start:end])

    assert found == [(False, message) for message in messages]
    assert one.held_bytes == 0


def test_a_message_that_is_not_whole_is_held() -> None:
    one = Assembler(1000, memory_for)

    assert one.feed(memoryview(framed_head(4) + b"abc")) == []
    assert one.held_bytes == 8


def test_a_large_message_is_put_together_as_it_comes() -> None:
    """Where it stays: nobody waits at its end until it has been copied."""
    places: list[memoryview] = []

    def memory(size: int) -> memoryview:
        places.append(memory_for(size))
        return places[-1]

    one = Assembler(LARGE_BYTES, memory)
    body = memoryview(b"\1" + framed_head(LARGE_BYTES)[1:] + b"x" * LARGE_BYTES + b"\0")
    assert one.feed(body[:2]) == []
    assert one.feed(body[2:1000]) == []
    assert (len(places), bytes(places[0][:995])) == (1, b"x" * 995)
    assert one.feed(body[1000:-2]) == []
    assert one.held_bytes == LARGE_BYTES + 4
    ((is_compressed, content),) = one.feed(body[-2:])
    assert (is_compressed, content is places[0], content == body[5:-1]) == (True, True, True)
    assert one.held_bytes == 1


def test_messages_that_cannot_be() -> None:
    with pytest.raises(MessageFault, match="at most 10") as caught:
        Assembler(10, memory_for).feed(memoryview(framed_head(11)))
    assert caught.value.is_too_large
    with pytest.raises(MessageFault, match="flag 2"):
        Assembler(10, memory_for).feed(memoryview(b"\2\0\0\0\0"))


def test_a_coding_that_nobody_said() -> None:
    with pytest.raises(MessageFault, match="'identity'"):
        inflation("identity", b"", 10)

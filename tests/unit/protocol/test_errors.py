"""Errors keep their blame, code and retryability over the wire and over pickling."""

from __future__ import annotations

import pickle

import pytest

from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import (
    MESSAGE_BYTES_MAX,
    Code,
    InternalError,
    ModelError,
    NaiadError,
    ProtocolError,
    RequestError,
    Unavailable,
    error_from_wire,
)

FAMILY = (RequestError, ModelError, Unavailable, ProtocolError, InternalError)


@pytest.mark.parametrize("code", list(Code))
def test_each_code_has_one_class_to_blame(code: Code) -> None:
    error = error_from_wire((str(code), "text", True))
    assert type(error) in FAMILY
    assert (error.code, error.message, error.retryable) == (code, "text", True)


@pytest.mark.parametrize("family", FAMILY)
def test_wire_and_pickle_round_trip(family: type[NaiadError]) -> None:
    error = family("expected x, got y; do z")
    for copy in (error_from_wire(error.wire()), pickle.loads(pickle.dumps(error))):
        assert type(copy) is family
        assert copy.wire() == error.wire()
        assert str(copy) == "expected x, got y; do z"


def test_only_load_is_retryable_by_nature() -> None:
    assert Unavailable("x").retryable
    assert not any(family("x").retryable for family in FAMILY if family is not Unavailable)


def test_a_code_of_a_newer_peer_keeps_its_text() -> None:
    error = error_from_wire(("quota_of_next_year", "too much", True))
    assert isinstance(error, InternalError)
    assert error.retryable
    assert "quota_of_next_year" in error.message
    assert "too much" in error.message


def test_messages_are_bounded() -> None:
    assert len(ModelError("x" * 10**6).wire()[1]) == MESSAGE_BYTES_MAX


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label \ud800!", "label \\ud800!"),
        (b"/data/\xff".decode("utf-8", "surrogateescape"), "/data/\\udcff"),
        ("ünï \U0001f600", "ünï \U0001f600"),
    ],
)
def test_a_message_can_be_encoded_whatever_text_it_was_made_of(
    family: type[NaiadError], text: str, said: str
) -> None:
    error = family(text)
    assert error.message == str(error) == said
    answer = decode(encode(m.Reply(1, error.wire())))
    assert answer == m.Reply(1, error.wire())


@pytest.mark.parametrize("character", ["x", "ü", "漢", "\U0001f600", "\udc80"])
def test_the_longest_message_of_any_alphabet_passes_the_codec(character: str) -> None:
    error = ModelError(character * 10**6)
    assert MESSAGE_BYTES_MAX - 4 < len(error.message.encode()) <= MESSAGE_BYTES_MAX
    assert decode(encode(m.Reply(1, error.wire()))) == m.Reply(1, error.wire())

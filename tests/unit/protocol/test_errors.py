"""Errors keep their blame, code and retryability over the wire and over pickling."""

from __future__ import annotations

import pickle

import pytest

from naiad.protocol.errors import (
    MESSAGE_CHARS_MAX,
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
    assert len(ModelError("x" * 10**6).wire()[1]) == MESSAGE_CHARS_MAX

"""The book of leases."""

from __future__ import annotations

import pytest

from naiad.protocol.errors import Code, Unavailable
from naiad.shm.leases import Leases


def test_a_request_may_hold_several_things_and_ends_once() -> None:
    leases: Leases[str] = Leases()
    leases.add(1, 7, "a")
    leases.add(1, 7, "b")
    leases.add(2, 7, "c")
    assert sorted(leases.keys()) == [(1, 7), (2, 7)]
    assert len(leases) == 2
    assert leases.end(1, 7) == ["a", "b"]
    assert leases.end(1, 7) == []
    assert leases.end(3, 7) == []
    assert leases.keys() == ((2, 7),)


def test_a_session_ends_with_all_its_requests() -> None:
    leases: Leases[str] = Leases()
    leases.add(1, 7, "a")
    leases.add(1, 8, "b")
    leases.add(2, 9, "c")
    assert leases.end_session(1) == ["a", "b"]
    assert leases.end_session(1) == []
    assert len(leases) == 1


def test_the_number_of_leased_requests_is_bounded() -> None:
    leases: Leases[str] = Leases(requests_max=2)
    leases.add(1, 1, "a")
    leases.add(2, 1, "b")
    leases.add(2, 1, "another of the same request")
    with pytest.raises(Unavailable, match="at most 2") as caught:
        leases.add(3, 1, "c")
    assert caught.value.code is Code.BUDGET_EXCEEDED
    assert caught.value.retryable
    assert leases.end_session(3) == []
    leases.end(1, 1)
    leases.add(3, 1, "c")
    assert len(leases) == 2

"""How much a broker keeps of loads that are asked for faster than their files can be looked at."""

from __future__ import annotations

import pytest

from naiad.broker.core.scans import OVERRIDE_BYTES_MAX, OVERRIDES_PENDING_MAX, SCANS_PENDING_MAX
from naiad.protocol.errors import Code, RequestError, Unavailable
from support.simulated_bench import CLIENT, Bench, config


def asked(bench: Bench, number: int, payload: bytes = b"") -> Exception | None:
    """Begin a load; the error with which it is refused at once, if it is."""
    call = bench.ask_control("load", payload, model=f"m{number}")
    return bench.replies.get((CLIENT, call), (None, None))[0]


@pytest.mark.parametrize("letter", [b" ", "é".encode()])
def test_a_config_given_with_a_load_has_a_limit(letter: bytes) -> None:
    bench = Bench()
    fault = asked(bench, 1, letter * (OVERRIDE_BYTES_MAX // len(letter) + 1))
    assert isinstance(fault, RequestError)
    assert str(OVERRIDE_BYTES_MAX) in fault.message
    assert bench.scans == []


@pytest.mark.parametrize(
    ("payload", "most"), [(b"{}", OVERRIDES_PENDING_MAX), (b"", SCANS_PENDING_MAX)]
)
def test_loads_that_wait_for_the_helper_are_bounded(payload: bytes, most: int) -> None:
    bench = Bench()
    assert [asked(bench, number, payload) for number in range(most)] == [None] * most
    fault = asked(bench, most, payload)
    assert isinstance(fault, Unavailable)
    assert fault.code is Code.UNAVAILABLE
    assert f"at most {most}" in fault.message
    assert len(bench.scans) == most
    bench.scanned(config("m0"))
    assert asked(bench, most, payload) is None

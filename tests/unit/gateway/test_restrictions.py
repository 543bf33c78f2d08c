"""Which options restrict what, and which are refused; no text has a secret in it."""

from __future__ import annotations

import pytest

from naiad.gateway.grpc_server import CATEGORIES as METHOD_CATEGORIES
from naiad.gateway.http_routes import CATEGORIES as ROUTE_CATEGORIES
from naiad.gateway.http_routes import VERBS
from naiad.gateway.restrictions import CATEGORIES, GRPC_PREFIX, RestrictionFault, parsed

OPTION = "--http-restricted-api"


def test_groups() -> None:
    found = parsed(OPTION, ["inference,health:My-Key=a=b c", "trace:other=x"])

    assert found.keys() == {"inference", "health", "trace"}
    assert found["inference"] is found["health"]
    assert found["health"].header == b"my-key"
    assert found["health"].name == "My-Key"
    assert found["health"].allows(b"a=b c")
    for wrong in (None, b"", b"a=b", b"a=b c ", b"A=B C", "é".encode()):
        assert not found["health"].allows(wrong)


def test_the_header_of_grpc_has_a_prefix() -> None:
    found = parsed("--grpc-restricted-protocol", ["inference:Key=x"], GRPC_PREFIX)

    assert found["inference"].header == b"triton-grpc-protocol-key"


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (["inference,bogus:key=hidden"], "'bogus' is no category; expected health, metadata"),
        (["inference,:key=hidden"], "'' is no category"),
        (["inference,inference:key=hidden"], "inference is named twice"),
        (["inference:key=hidden", "trace,inference:key=hidden"], "inference is named twice"),
        (["inference"], "expected CATEGORY"),
        (["inference=hidden"], "expected CATEGORY"),
        (["inference:hidden"], "expected CATEGORY"),
        (["inference:=hidden"], "expected CATEGORY"),
        (["inference:key="], "expected CATEGORY"),
        (["inference:my key=hidden"], "expected CATEGORY"),
        (["inference:key=hidden "], "expected CATEGORY"),
        (["inference:key=hid\x07den"], "expected CATEGORY"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(groups: list[str], text: str) -> None:
    with pytest.raises(RestrictionFault, match=text) as caught:
        parsed(OPTION, groups)
    assert OPTION in str(caught.value)
    assert "hid" not in str(caught.value)


def test_no_repr_shows_the_secret() -> None:
    assert "hidden" not in repr(parsed(OPTION, ["inference:key=hidden"]))


def test_every_route_and_method_has_a_category() -> None:
    assert ROUTE_CATEGORIES.keys() == VERBS.keys()
    assert {one for found in ROUTE_CATEGORIES.values() for one in found} == set(CATEGORIES)
    assert set(METHOD_CATEGORIES.values()) == set(CATEGORIES)

"""What a call becomes for the client library; refused in the words of HTTP and gRPC."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.gateway.calls import InferCall
from naiad.gateway.pending import prepared
from naiad.protocol.checks import NAME_BYTES_MAX
from naiad.protocol.errors import RequestError


class NoMemory:
    """A client library without shared memory."""

    def share(self, inputs: Any) -> tuple[Any, None]:
        return inputs, None


def parts_of(ident: str) -> Any:
    client: Any = NoMemory()
    return prepared(client, InferCall("m", -1, ident, ()), {})


@pytest.mark.parametrize("ident", ["", "i" * NAME_BYTES_MAX, "é" * NAME_BYTES_MAX])
def test_an_id_travels_as_the_label(ident: str) -> None:
    assert parts_of(ident).head == ("m", -1, ident)


@pytest.mark.parametrize(
    ("ident", "came"),
    [
        ("i" * (NAME_BYTES_MAX + 1), f"one of {NAME_BYTES_MAX + 1}: 'iii"),
        ("é" * (NAME_BYTES_MAX + 1), f"one of {NAME_BYTES_MAX + 1}: 'éé"),
        ("\ud800", r"'\\ud800'"),
    ],
)
def test_an_id_that_cannot_travel_is_called_id(ident: str, came: str) -> None:
    with pytest.raises(RequestError, match=rf"^expected id as a string .* got {came}") as caught:
        parts_of(ident)
    assert "label" not in caught.value.message

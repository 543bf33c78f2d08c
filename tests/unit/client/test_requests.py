"""What would spoil the message that a request shares with others is refused before it is sent."""

from __future__ import annotations

import pytest

from naiad.client.fields import packed, tail
from naiad.client.requests import InferInput, checked
from naiad.protocol.checks import ARRAY_ITEMS_MAX
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import OutputRequest


@pytest.mark.parametrize("dim", [2**63, -(2**63), 10**30])
def test_a_dimension_that_does_not_travel(dim: int) -> None:
    with pytest.raises(RequestError, match="a shape of at most"):
        packed(InferInput("x", "FP32", (dim,), bytes(4)))


def test_more_tensors_than_an_array_may_have() -> None:
    outputs = tuple([OutputRequest("")] * (ARRAY_ITEMS_MAX + 1))
    inputs = tuple([packed(InferInput("", "FP32", (), bytes(4)))] * (ARRAY_ITEMS_MAX + 1))

    with pytest.raises(RequestError, match="4097 outputs"):
        checked(("m", -1, ""), (), tail(outputs, 0, 0, None, "", "", "", None))
    with pytest.raises(RequestError, match="4097 inputs"):
        checked(("m", -1, ""), inputs)

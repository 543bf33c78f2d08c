"""The order of a stream's requests, before a model that counts them."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack, unpack
from typing import Any

import pytest

from support.front_door import Given, GrpcDoor, Shared, grpc_request
from support.named_region import NamedRegion

BEHIND = 30
VALUE = pack("<f", 0.0)


@pytest.fixture
def region(grpc_door: GrpcDoor) -> Iterator[NamedRegion]:
    with NamedRegion(4096) as region:
        grpc_door.register(region.name, region.key, 4096)
        yield region
        grpc_door.unregister(region.name)


@pytest.mark.parametrize("kind", ["classes", "region"])
def test_none_overtakes_a_request_for_which_something_is_looked_up(
    grpc_door: GrpcDoor, region: NamedRegion, kind: str
) -> None:
    plain = grpc_request("counter", [Given("INPUT0", "FP32", [1], VALUE)])
    if kind == "region":
        slow = grpc_request("counter", [Given("INPUT0", "FP32", [1], Shared(region.name, 4))])
    else:
        slow = grpc_request("counter", [Given("INPUT0", "FP32", [1], VALUE)], ["OUTPUT0"])
        slow.outputs[0].parameters["classification"].int64_param = 1
    messages = [slow, *[plain] * BEHIND, slow, *[plain] * BEHIND]
    answers = list(grpc_door.stub.ModelStreamInfer(iter(messages), timeout=20))
    found = [number_of(one) for one in answers]
    assert found == [found[0] + count for count in range(len(messages))]


def number_of(answer: Any) -> int:
    """Which one it was, of all requests that the model has executed."""
    (raw,) = answer.infer_response.raw_output_contents
    if len(raw) == 4:
        return int(unpack("<f", raw)[0])
    return int(float(raw[4:].split(b":")[0]))

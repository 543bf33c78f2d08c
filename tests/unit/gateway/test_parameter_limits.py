"""The most that a request's parameters may be comes through every door, and fits its message."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable

import pytest
from tritonclient.grpc import service_pb2

from naiad.client.packing import Request, infer_message
from naiad.client.requests import PackedInput
from naiad.gateway.calls import InferCall
from naiad.gateway.client_form import prepared
from naiad.gateway.grpc_codec.large import parts_in_steps, request_in_steps
from naiad.gateway.grpc_codec.requests import decoded_request
from naiad.gateway.long_work import Steps
from naiad.protocol.checks import NAME_BYTES_MAX, STRING_BYTES_MAX
from naiad.protocol.codec import decode
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import CLIENT_HEADER_BYTES_MAX, INLINE_BYTES_MAX, PARAMETERS_MAX
from support.large_json import at_once, body, in_slices
from support.steps import ended

Texts = dict[str, str]
LONGEST = {"\N{EURO SIGN}" * NAME_BYTES_MAX: "x" * STRING_BYTES_MAX}
MOST = {f"k{number}": "x" * 100 for number in range(PARAMETERS_MAX)}


class NoMemory:
    """A client library without shared memory."""

    def share(self, inputs: tuple[PackedInput, ...]) -> tuple[tuple[PackedInput, ...], None]:
        return inputs, None


def json_of(parameters: Texts) -> bytes:
    label = "i" * NAME_BYTES_MAX
    more = f',"parameters":{json.dumps(parameters)}'
    return body("[1]", count=1, more=more).replace(b'"id":"5"', f'"id":"{label}"'.encode())


def grpc_of(parameters: Texts) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="m", id="i" * NAME_BYTES_MAX)
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    data: bytes = request.SerializeToString()
    return data


def grpc_in_steps(data: bytes) -> InferCall:
    def steps() -> Steps[InferCall]:
        parts = yield from parts_in_steps(data)
        return (yield from request_in_steps(parts))

    return ended(steps())[0]


DOORS: dict[str, Callable[[Texts], InferCall]] = {
    "JSON": lambda given: at_once(json_of(given)),
    "large JSON": lambda given: in_slices(json_of(given)),
    "gRPC": lambda given: decoded_request(grpc_of(given)),
    "large gRPC": lambda given: grpc_in_steps(grpc_of(given)),
}


def sent(call: InferCall) -> None:
    """As far as the broker reads it."""
    parts = prepared(NoMemory(), call, {})  # type: ignore[arg-type]
    message = infer_message(deque([Request(1, parts, object())]), INLINE_BYTES_MAX)
    assert message is not None
    header, *frames = message
    decode(bytes(header), [len(frame) for frame in frames], CLIENT_HEADER_BYTES_MAX)


@pytest.mark.parametrize("given", [LONGEST, MOST], ids=["longest", "most"])
@pytest.mark.parametrize("door", DOORS)
def test_the_most_comes_through(door: str, given: Texts) -> None:
    call = DOORS[door](given)
    assert call.parameters == given
    sent(call)


@pytest.mark.parametrize("door", DOORS)
def test_more_is_refused_by_name(door: str) -> None:
    longer = {"k": "x" * (STRING_BYTES_MAX + 1)}
    with pytest.raises(RequestError, match=f"at most {STRING_BYTES_MAX} bytes"):
        sent(DOORS[door](longer))
    more = {**MOST, "one": "more"}
    with pytest.raises(RequestError, match=f"257 parameters, expected at most {PARAMETERS_MAX}"):
        sent(DOORS[door](more))
    three = dict.fromkeys("abc", "x" * STRING_BYTES_MAX)
    with pytest.raises(RequestError, match=f"expected at most {CLIENT_HEADER_BYTES_MAX}"):
        sent(DOORS[door](three))

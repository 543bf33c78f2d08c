"""A ModelInferRequest to the call that both front doors know. Pure.

Refuses what no server could read. Whether the model has such tensors, the broker decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from naiad.client.requests import Buffer
from naiad.gateway.calls import (
    ANY_VERSION,
    TENSORS_MAX,
    CallInput,
    CallOutput,
    InferCall,
    RegionPart,
)
from naiad.gateway.grpc_codec.contents import packed_contents
from naiad.gateway.grpc_codec.parameters import (
    NONE,
    class_count,
    region_part,
    request_parameters,
)
from naiad.gateway.grpc_codec.wire import parsed_request
from naiad.protocol import messages as m
from naiad.protocol.errors import RequestError

_VERSION_MAX: Final = 2**63 - 1


def decoded_request(data: Buffer, added: m.Parameters | None = None) -> InferCall:
    """The call in a serialised ModelInferRequest.

    Args:
        data: must stay alive and unchanged as long as the call: large inputs are views of it.
        added: parameters from elsewhere (forwarded headers). A request may not have them too.

    Raises:
        RequestError: Triton's texts for what is wrong with the message itself.
    """
    message, raw = parsed_request(data)
    return request_with(message, _inputs(message, raw), added)


def request_with(
    message: Any, inputs: tuple[CallInput, ...], added: m.Parameters | None
) -> InferCall:
    """The same of a ModelInferRequest, whose inputs are not looked at."""
    if len(message.outputs) > TENSORS_MAX:
        raise RequestError(f"{len(message.outputs)} outputs, expected at most {TENSORS_MAX}")
    given = request_parameters(message.parameters) if len(message.parameters) else NONE
    parameters = given.others
    if added:
        parameters = _joined(parameters, added)
    return InferCall(
        message.model_name,
        version_number(message.model_version),
        message.id,
        inputs,
        tuple([_output(one) for one in message.outputs]),
        parameters,
        given.priority,
        given.timeout_us,
        given.sequence,
        True,
    )


def version_number(text: str) -> int:
    """A version as it travels in messages; "" means any. Raises RequestError as Triton does."""
    if not text:
        return ANY_VERSION
    if text.isascii() and text.isdigit():
        number = int(text) if len(text) < 20 else _VERSION_MAX + 1
        if number <= _VERSION_MAX:
            return number
    raise RequestError(
        f"failed to get model version from specified version string '{text:.40}': expected a"
        " number of at least 0"
    )


def _inputs(message: Any, raw: list[Buffer]) -> tuple[CallInput, ...]:
    model = message.model_name
    remaining = iter(raw) if raw else None
    found = []
    for tensor in message.inputs:
        data = place_of(tensor, model, remaining, tensor.HasField("contents"))
        if data is None:
            data = packed_contents(tensor.contents, tensor.name, tensor.datatype, model)
        found.append(CallInput(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    return tuple(found)


def place_of(
    tensor: Any, model: str, raw: Iterator[Buffer] | None, has_contents: bool
) -> Buffer | RegionPart | None:
    """An input's data: the next raw contents, or a region; None: its own contents.

    Raises RequestError when it has none, or both.
    """
    region = region_part(tensor.parameters) if len(tensor.parameters) else None
    if raw is not None and has_contents:
        raise RequestError(
            "contents field must not be specified when using raw_input_contents for"
            f" '{tensor.name}' for model '{model}'"
        )
    if region is not None:
        return region
    data = next(raw, None) if raw is not None else None
    if data is None and (raw is not None or not has_contents):
        raise RequestError(
            f"unable to find data for input tensor '{tensor.name}' for model '{model}' in request."
        )
    return data


def _output(given: Any) -> CallOutput:
    parameters = given.parameters
    if not len(parameters):
        return CallOutput(given.name, is_binary=True)
    count = class_count(parameters)
    region = region_part(parameters)
    if count and region is not None:
        raise RequestError(
            f"output '{given.name}' can set only one of 'shared_memory_region' and 'classification'"
        )
    return CallOutput(given.name, count, region, is_binary=True)


def _joined(own: m.Parameters, added: m.Parameters) -> m.Parameters:
    for name in added:
        if name in own:
            raise RequestError(
                f"parameter '{name}' is given in the request and by a forwarded header; rename one"
            )
    return {**own, **added}

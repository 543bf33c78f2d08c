"""An HTTP inference request's body to an InferCall. Pure.

Owns the three forms of a body: JSON alone, JSON with binary tensors behind it (the header
Inference-Header-Content-Length says where they begin), and one raw tensor (that header is 0).
Tensors are views of the body. What is inside a tensor only the given converter knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from naiad.client.requests import Buffer
from naiad.gateway.calls import Arena, ArenaPart, CallInput, CallOutput, InferCall, RegionPart
from naiad.gateway.http_parameters import (
    Json,
    RequestParameters,
    array_of,
    kind_of,
    object_of,
    output_of,
    parsed_object,
    region_of,
    shape_of,
    text_of,
    uint_of,
)
from naiad.protocol.datatypes import FROM_CONFIG, ITEM_BYTES, LENGTH_PREFIX_BYTES, element_count
from naiad.protocol.errors import RequestError

HEADER_NAME: Final = "Inference-Header-Content-Length"
ARENA_BYTES_MIN: Final = 64 * 1024
"""Smaller tensors travel inside messages wherever they were received."""
_INT32_MAX: Final = 2**31 - 1
_DIGITS_MAX: Final = 10

FromJson = Callable[[str, str, tuple[int, ...], list[Any]], Buffer]
"""(input's name, datatype, shape, data as parsed) to its bytes; see naiad.gateway.json_tensors."""


def json_length(header: str | None, body_bytes: int, limit_bytes: int) -> int:
    """Where the JSON ends; 0: there is none, the body is one raw tensor.

    Raises RequestError when the header, or what it says, cannot be.
    """
    if header is None:
        length = body_bytes
    else:
        text = header.strip()
        if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
            raise RequestError(
                f"Unable to parse {HEADER_NAME}, got: {header[:40]!r}; expected a number of bytes"
            )
        length = int(text)
        if length > body_bytes or length > _INT32_MAX:
            raise RequestError(
                f"inference header size should be in range (0, {body_bytes}), got: {length}"
                f" ({HEADER_NAME})"
            )
    checked_size("JSON", length or body_bytes, limit_bytes)
    return length


def checked_size(what: str, size: int, limit_bytes: int) -> None:
    """Raises RequestError beyond the limit; names the flag that moves it."""
    if size > limit_bytes:
        raise RequestError(
            f"Request {what} size of {size} bytes exceeds the maximum allowed value of"
            f" {limit_bytes} bytes. Use --http-max-input-size to increase the limit."
        )


def infer_call(
    model: str,
    version: int,
    body: Buffer,
    length: int,
    from_json: FromJson,
    limit_bytes: int,
    place: tuple[Arena, int] | None = None,
) -> InferCall:
    """A body whose JSON has `length` bytes (see `json_length`; not 0), as a call.

    `place`: the body lies in this arena, at this offset, and its large tensors stay there.

    Raises RequestError for whatever is wrong with it, with Triton's texts.
    """
    found = parsed_object(bytes(body[:length]))
    return call_of(found, model, version, body, length, from_json, limit_bytes, place)


def call_of(
    found: Json,
    model: str,
    version: int,
    body: Buffer,
    length: int,
    from_json: FromJson,
    limit_bytes: int,
    place: tuple[Arena, int] | None,
) -> InferCall:
    """The same with its JSON as parsed."""
    reader = Inputs(model, body, length, from_json, limit_bytes, place)
    inputs = [reader.input(one) for one in array_of(found, "inputs")]
    reader.check_end()
    return call_with(found, model, version, tuple(inputs))


def call_with(found: Json, model: str, version: int, inputs: tuple[CallInput, ...]) -> InferCall:
    """The same with its inputs as read."""
    outputs: tuple[CallOutput, ...] = ()
    if "outputs" in found:
        outputs = tuple([output_of(one) for one in array_of(found, "outputs")])
    label = text_of(found, "id") if "id" in found else ""
    if "parameters" not in found:
        return InferCall(model, version, label, inputs, outputs)
    parameters = RequestParameters(object_of(found, "parameters"))
    return InferCall(
        model,
        version,
        label,
        inputs,
        outputs,
        parameters.others,
        parameters.priority,
        parameters.timeout_us,
        parameters.sequence,
        parameters.is_binary,
    )


class Inputs:
    """Walks through the inputs and, beside them, through the binary part of the body."""

    __slots__ = ("_body", "_from_json", "_limit_bytes", "_model", "_offset", "_place")

    def __init__(
        self,
        model: str,
        body: Buffer,
        offset: int,
        from_json: FromJson,
        limit_bytes: int,
        place: tuple[Arena, int] | None,
    ) -> None:
        self._model = model
        self._body = memoryview(body)
        self._offset = offset
        self._from_json = from_json
        self._limit_bytes = limit_bytes
        self._place = place

    def input(self, found: Any) -> CallInput:
        if type(found) is not dict:
            raise RequestError(f"Unable to parse 'inputs': expected objects, got {kind_of(found)}")
        name = text_of(found, "name")
        shape = shape_of(found)
        datatype = text_of(found, "datatype")
        if datatype not in ITEM_BYTES:
            raise RequestError(
                f"invalid datatype for input {name}: {datatype!r:.40}, expected one of"
                f" {', '.join(ITEM_BYTES)}"
            )
        parameters = object_of(found, "parameters")
        fields = ("data" in found) + ("binary_data_size" in parameters)
        fields += "shared_memory_region" in parameters
        if fields != 1:
            raise _wrong_fields(found, parameters)
        if "binary_data_size" in parameters:
            size = uint_of(parameters, "binary_data_size")
            return CallInput(name, datatype, shape, self._next(name, size))
        if "data" in found:
            return CallInput(name, datatype, shape, self._converted(found, name, datatype, shape))
        region = region_of(parameters)
        assert region is not None
        return CallInput(name, datatype, shape, region)

    def _next(self, name: str, size: int) -> Buffer | ArenaPart:
        start = self._offset
        end = start + size
        if end > len(self._body):
            raise RequestError(
                f"unexpected size for input '{name}', expecting {end - len(self._body)} additional"
                f" bytes for model '{self._model}'"
            )
        self._offset = end
        if self._place is not None and size >= ARENA_BYTES_MIN:
            return ArenaPart(self._place[0], self._place[1] + start, size)
        return self._body[start:end]

    def _converted(self, found: Json, name: str, datatype: str, shape: tuple[int, ...]) -> Buffer:
        item_bytes = ITEM_BYTES[datatype]
        checked_size(f"input '{name}'", element_count(shape) * item_bytes, self._limit_bytes)
        return self._from_json(name, datatype, shape, array_of(found, "data"))

    def check_end(self) -> None:
        left = len(self._body) - self._offset
        if left:
            raise RequestError(
                f"unexpected additional input data for model '{self._model}': {left} bytes behind"
                " the last binary input"
            )


def raw_call(model: str, version: int, body: Buffer, config: Json) -> InferCall:
    """A body that is nothing but the data of the model's single input.

    `config` is the model's, as JSON; its one dimension that is not fixed follows from the size of
    the body. Raises RequestError where that is not possible.
    """
    inputs = config.get("input", [])
    if len(inputs) != 1:
        raise RequestError(
            f"Raw request must only have 1 input (found {len(inputs)}) to be deduced but got"
            f" {len(inputs)} inputs in '{model}' model configuration"
        )
    name = inputs[0]["name"]
    datatype = FROM_CONFIG[inputs[0]["data_type"]]
    dims = [int(dim) for dim in inputs[0]["dims"]]
    data: Buffer = body
    if datatype == "BYTES":
        known = 1
        for dim in dims:
            known *= max(dim, 1)
        if known != 1:
            raise RequestError(
                f"For BYTE datatype raw input '{name}', the model must have input shape [1]"
            )
        shape = [1] * len(dims)
        data = len(body).to_bytes(LENGTH_PREFIX_BYTES, "little") + bytes(body)
    else:
        shape = _deduced(name, dims, len(body), ITEM_BYTES[datatype])
    if int(config.get("max_batch_size", 0)) > 0:
        shape = [1, *shape]
    return InferCall(
        model,
        version,
        "",
        (CallInput(name, datatype, tuple(shape), data),),
        is_binary_by_default=True,
    )


def _deduced(name: str, dims: list[int], size: int, item_bytes: int) -> list[int]:
    """The shape for `size` bytes; whether it fits exactly, the broker checks."""
    unknown = [index for index, dim in enumerate(dims) if dim < 0]
    if len(unknown) > 1:
        raise RequestError(
            f"The shape of the raw input '{name}' can not be deduced because there are more than"
            " one variable-sized dimension"
        )
    if not unknown:
        return dims
    known = element_count([dim for dim in dims if dim >= 0]) * item_bytes
    shape = list(dims)
    shape[unknown[0]] = size // known if known else 0
    return shape


def uses_regions(call: InferCall) -> bool:
    """Whether it names shared memory that is registered with the server."""
    return any(type(one.data) is RegionPart for one in call.inputs) or any(
        one.region is not None for one in call.outputs
    )


def _wrong_fields(found: Json, parameters: Json) -> RequestError:
    set_fields = ["data"] if "data" in found else []
    set_fields += [one for one in ("binary_data_size", "shared_memory_region") if one in parameters]
    but = f"set {' '.join(map(repr, set_fields))}" if set_fields else "no field is set"
    return RequestError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in"
        f" 'parameters', 'shared_memory_region' in 'parameters'. But {but} for input"
        f" '{found['name']}'"
    )

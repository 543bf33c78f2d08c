"""A large ModelInferRequest to a call, in steps of a few milliseconds. Pure.

The message library reads a message at once, and what is in it becomes objects: 8 MiB of numbers
take a second. So fields are looked at one after the other, the library is given a few of them at a
time, and typed contents are cut where one element ends. Owns how large each part may be.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from naiad.client.requests import Buffer
from naiad.gateway.calls import TENSORS_MAX, CallInput, InferCall
from naiad.gateway.grpc_codec.contents import field_of, packed_contents
from naiad.gateway.grpc_codec.requests import place_of, request_with
from naiad.gateway.grpc_codec.short_fields import run_end
from naiad.gateway.grpc_codec.wire import (
    BYTES,
    RAW_INPUT_TAG,
    STRUCTURE_BYTES_MAX,
    fields,
    malformed,
    next_field,
    parsed,
    too_large,
    varint,
)
from naiad.gateway.proto.inference_pb2 import InferTensorContents, ModelInferRequest
from naiad.protocol import messages as m
from naiad.protocol.datatypes import LENGTH_PREFIX_BYTES
from naiad.protocol.errors import RequestError

FIELDS_PER_STEP: Final = 512
"""Looked at at once: 1 to 2 ms."""
INPUTS_PER_STEP: Final = 64
PART_BYTES: Final = 8 * 1024
"""Of a message that the library is given at once: 1 to 2 ms where they are numbers."""
FIELD_BYTES_MAX: Final = 48 * 1024
"""Of a parameter, an output or another field that is no tensor: more than the longest text that one
may have, and its name."""
BESIDE_BYTES_MAX: Final = 256 * 1024
"""Of all these together: four times what the server's own message of a request may have."""
COPIED_BYTES: Final = 256 * 1024
"""At once."""

_INPUT_TAG: Final = 5 << 3 | BYTES
_OUTPUT_TAG: Final = 6 << 3 | BYTES
_CONTENTS_TAG: Final = 5 << 3 | BYTES
"""Of an input."""
_BYTES_CONTENTS_TAG: Final = 8 << 3 | BYTES
_FIXED: Final = {6 << 3 | BYTES: ("fp32_contents", 4), 7 << 3 | BYTES: ("fp64_contents", 8)}
"""Packed numbers that are a tensor's bytes already."""
_CONTENTS_FIELDS: Final = 8
_PART_BYTES_LEAST: Final = PART_BYTES // FIELDS_PER_STEP
"""So much work a part of contents is at least."""
_VARINT_BYTES_MAX: Final = 10

T = TypeVar("T")
Steps = Generator[None, None, T]


class Parts(NamedTuple):
    """A request whose fields were looked at once, as views of it."""

    tensors: list[memoryview]
    raw: list[Buffer]
    beside: list[memoryview]
    """All other fields, whole."""
    size: int
    """In bytes without raw contents, to which nothing is done."""


def parts_in_steps(data: Buffer) -> Steps[Parts]:
    """The parts of a ModelInferRequest. Raises RequestError for what is none, or beyond a limit."""
    view = memoryview(data)
    raw: list[Buffer] = []
    tensors: list[memoryview] = []
    beside: list[memoryview] = []
    outputs = tensor_bytes = beside_bytes = 0
    for count, (tag, position, start, end) in enumerate(fields(view), 1):
        if count % FIELDS_PER_STEP == 0:
            yield
        if tag == RAW_INPUT_TAG:
            raw.append(view[start:end])
        elif tag == _INPUT_TAG:
            tensors.append(view[start:end])
            tensor_bytes += end - start
            _check_count("inputs", len(tensors))
        else:
            outputs += tag == _OUTPUT_TAG
            _check_count("outputs", outputs)
            beside.append(view[position:end])
            beside_bytes += end - position
            _check_beside(end - position, beside_bytes)
        if tensor_bytes + beside_bytes > STRUCTURE_BYTES_MAX:
            raise too_large(len(data) - sum(map(len, raw)))
    return Parts(tensors, raw, beside, tensor_bytes + beside_bytes)


def request_in_steps(parts: Parts, added: m.Parameters | None = None) -> Steps[InferCall]:
    """What `decoded_request` makes of them. Raises RequestError as that does."""
    message = ModelInferRequest()
    kept: list[memoryview] = []
    kept_bytes = 0
    for field in parts.beside:
        kept.append(field)
        kept_bytes += len(field)
        if kept_bytes > PART_BYTES:
            _merge(message, kept)
            kept_bytes = 0
            yield
    _merge(message, kept)
    yield
    inputs = yield from _inputs(parts.tensors, parts.raw, message.model_name)
    yield
    return request_with(message, inputs, added)


def _check_count(what: str, count: int) -> None:
    if count > TENSORS_MAX:
        raise RequestError(f"{count} {what} or more, expected at most {TENSORS_MAX}")


def _check_beside(size: int, total: int) -> None:
    if size > FIELD_BYTES_MAX:
        raise RequestError(
            f"a parameter, an output or a name of {size} bytes, expected at most {FIELD_BYTES_MAX}"
        )
    if total > BESIDE_BYTES_MAX:
        raise RequestError(
            f"{total} bytes or more beside inputs and raw_input_contents, expected at most"
            f" {BESIDE_BYTES_MAX}"
        )


def _merge(message: Any, kept: list[memoryview]) -> None:
    try:
        message.MergeFromString(b"".join(kept))
    except DecodeError as fault:
        raise malformed() from fault
    kept.clear()


def _inputs(
    tensors: list[memoryview], raw: list[Buffer], model: str
) -> Steps[tuple[CallInput, ...]]:
    remaining = iter(raw) if raw else None
    found: list[CallInput] = []
    for count, view in enumerate(tensors, 1):
        if len(view) > PART_BYTES or count % INPUTS_PER_STEP == 0:
            yield
        contents: list[memoryview] = []
        if len(view) <= PART_BYTES:
            tensor = parsed(ModelInferRequest.InferInputTensor, bytes(view))
            has_contents = tensor.HasField("contents")
        else:
            tensor = yield from _without_contents(view, contents)
            has_contents = bool(contents)
        data = place_of(tensor, model, remaining, has_contents)
        if data is None and contents:
            data = yield from _packed(contents, tensor.name, tensor.datatype, model)
        elif data is None:
            data = packed_contents(tensor.contents, tensor.name, tensor.datatype, model)
        found.append(CallInput(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    return tuple(found)


def _without_contents(view: memoryview, contents: list[memoryview]) -> Steps[Any]:
    """An input; its contents are put into the list."""
    kept: list[memoryview] = []
    kept_bytes = 0
    for count, (tag, position, start, end) in enumerate(fields(view), 1):
        if count % FIELDS_PER_STEP == 0:
            yield
        if tag == _CONTENTS_TAG:
            contents.append(view[start:end])
            continue
        kept.append(view[position:end])
        kept_bytes += end - position
        if kept_bytes > PART_BYTES:
            raise RequestError(
                f"an input with {kept_bytes} bytes or more beside its contents, expected at most"
                f" {PART_BYTES}"
            )
    return parsed(ModelInferRequest.InferInputTensor, b"".join(kept))


def _packed(parts: list[memoryview], name: str, datatype: str, model: str) -> Steps[bytearray]:
    """What `packed_contents` makes of these contents, which are one message in parts."""
    wanted = field_of(datatype, name, model)
    found = bytearray()
    read_bytes = 0
    for view in parts:
        if read_bytes > PART_BYTES:
            read_bytes = 0
            yield
        end = len(view)
        read_bytes += max(end, _PART_BYTES_LEAST)
        first = position = 0
        while position < end:
            start = position
            position = run_end(view, start, min(first + PART_BYTES, end))
            if position == start:
                tag, content, position = next_field(view, start, end)
                if position - content > PART_BYTES and tag & 7 == BYTES:
                    found += _read(bytes(view[first:start]), name, datatype, model)
                    first = position
                    yield
                    long = view[content:position]
                    yield from _long(found, tag, long, name, datatype, model, wanted)
                elif position - first > PART_BYTES:
                    found += _read(bytes(view[first:position]), name, datatype, model)
                    first = position
                    yield
        found += _read(bytes(view[first:end]), name, datatype, model)
    return found


def _read(message: bytes, name: str, datatype: str, model: str) -> bytes:
    if not message:
        return b""
    return packed_contents(parsed(InferTensorContents, message), name, datatype, model)


def _long(
    found: bytearray,
    tag: int,
    value: memoryview,
    name: str,
    datatype: str,
    model: str,
    wanted: str,
) -> Steps[None]:
    """A field of bytes, or of packed numbers."""
    size = len(value)
    field, width = _FIXED.get(tag, ("", 1))
    if size % width:
        raise malformed()
    if field == wanted or (tag == _BYTES_CONTENTS_TAG and wanted == "bytes_contents"):
        if not field:
            found += size.to_bytes(LENGTH_PREFIX_BYTES, "little")
        for start in range(0, size, COPIED_BYTES):
            found += value[start : start + COPIED_BYTES]
            yield
        return
    if tag >> 3 > _CONTENTS_FIELDS:
        return
    start = 0
    while start < size:
        stop = size if tag == _BYTES_CONTENTS_TAG else _boundary(value, start, width)
        part = b"" if tag == _BYTES_CONTENTS_TAG else value[start:stop]
        message = b"".join((varint(tag), varint(len(part)), part))
        found += _read(message, name, datatype, model)
        start = stop
        yield


def _boundary(value: memoryview, start: int, width: int) -> int:
    """Where a number ends, about PART_BYTES behind `start`."""
    stop = min(start + PART_BYTES, len(value))
    if width > 1:
        return stop
    for _ in range(_VARINT_BYTES_MAX):
        if stop == len(value) or value[stop - 1] < 0x80:
            return stop
        stop += 1
    raise malformed()

"""Tensor bytes in and out of protobuf messages without copying them. Pure.

A message library copies a bytes field twice on its way to Python. Raw contents are the bulk of an
inference message and lie in it as they are, so they are cut out of its bytes as views, and an
answer's are appended to it: fields of one message may be concatenated. Everything else is left to
the library, small messages entirely.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from naiad.client.requests import SMALL_BYTES_MAX, Buffer
from naiad.gateway.proto.inference_pb2 import ModelInferRequest
from naiad.protocol.errors import RequestError

FIELDS_MAX: Final = 4096
"""Fields of a large message: inputs, outputs, parameters and raw contents together."""
STRUCTURE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A message without its raw contents. What is in it becomes objects, up to 20 times its size."""

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_VARINT_BYTES_MAX: Final = 10
_RAW_INPUT_TAG: Final = 7 << 3 | _BYTES
_RAW_OUTPUT_TAG: Final = bytes([6 << 3 | _BYTES])


def parsed_request(data: bytes) -> tuple[Any, list[Buffer]]:
    """A ModelInferRequest without raw_input_contents, and these, in order.

    Large contents are views of `data`. Raises RequestError for what is no such message, or is
    larger than any request needs to be.
    """
    raw: list[Buffer]
    if len(data) <= SMALL_BYTES_MAX:
        message = _parsed(data)
        raw = list(message.raw_input_contents)
        return message, raw
    structure, raw = _cut(data)
    return _parsed(structure), raw


def with_raw_outputs(structure: bytes, contents: list[Buffer]) -> bytes:
    """A serialised ModelInferResponse with these raw_output_contents after all else."""
    parts: list[Buffer] = [structure]
    for content in contents:
        parts += (_RAW_OUTPUT_TAG, varint(len(content)), content)
    return b"".join(parts)


def varint(number: int) -> bytes:
    """A number of at least 0 as protobuf writes lengths."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(tag: int, content: bytes) -> bytes:
    """A field of bytes, text or a message, by its tag of one byte."""
    return b"".join((bytes((tag,)), varint(len(content)), content))


def _parsed(data: bytes) -> Any:
    try:
        return ModelInferRequest.FromString(data)
    except DecodeError as fault:
        raise _malformed() from fault


def _malformed() -> RequestError:
    return RequestError("the request is not a ModelInferRequest: its bytes cannot be decoded")


def _cut(data: bytes) -> tuple[bytes, list[Buffer]]:
    """(everything but raw_input_contents, these as views)."""
    view = memoryview(data)
    kept: list[memoryview] = []
    raw: list[Buffer] = []
    kept_bytes = position = count = 0
    end = len(data)
    while position < end:
        count += 1
        if count > FIELDS_MAX:
            raise RequestError(
                f"more than {FIELDS_MAX} inputs, outputs, parameters and contents in a request"
            )
        start = position
        tag, position = _number(data, position)
        kind = tag & 7
        if kind == _BYTES:
            size, position = _number(data, position)
            content = position
            position += size
            if tag == _RAW_INPUT_TAG and position <= end:
                raw.append(view[content:position])
                continue
        elif kind == _VARINT:
            _, position = _number(data, position)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:  # groups, which no version of this message has
            raise _malformed()
        if position > end:
            raise _malformed()
        kept.append(view[start:position])
        kept_bytes += position - start
    if kept_bytes > STRUCTURE_BYTES_MAX:
        raise RequestError(
            f"{kept_bytes} bytes beside raw_input_contents, expected at most"
            f" {STRUCTURE_BYTES_MAX}; send large tensors as raw_input_contents"
        )
    return b"".join(kept), raw


def _number(data: bytes, position: int) -> tuple[int, int]:
    """(the varint at a position, the position after it)."""
    number = shift = 0
    for byte in data[position : position + _VARINT_BYTES_MAX]:
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise _malformed()

"""Tensor bytes in and out of protobuf messages without copying them. Pure.

A message library copies a bytes field twice on its way to Python. Raw contents are the bulk of an
inference message and lie in it as they are, so they are cut out of its bytes as views, and an
answer's are appended to it: fields of one message may be concatenated. Everything else is left to
the library, small messages entirely.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError

from naiad.client.requests import SMALL_BYTES_MAX, Buffer
from naiad.gateway.proto.inference_pb2 import ModelInferRequest
from naiad.protocol.errors import RequestError

FIELDS_MAX: Final = 4096
"""Fields of a large message: inputs, outputs, parameters and raw contents together. Of an input or
a file likewise."""
STRUCTURE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A message without its raw contents. What is in it becomes objects, up to 20 times its size."""

JOINED_BYTES_MAX: Final = 64 * 1024
"""Of an answer's raw contents that are copied into one piece; larger ones go out as they are."""
Parts = list[bytes | memoryview]
"""A message, one part behind the other."""

LIGHT_BYTES: Final = 2 * 1024
"""Of a message that is read at once whatever is in it."""
LIGHT_FIELDS_MAX: Final = 64
LIGHT_STRUCTURE_BYTES: Final = 16 * 1024
"""Of a larger one without its raw contents, likewise: 16,000 numbers."""

BYTES: Final = 2
"""The kind of a field that says how long it is: bytes, texts, messages, packed numbers."""
VARINT: Final = 0
FIXED64: Final = 1
FIXED32: Final = 5
_VARINT_BYTES_MAX: Final = 10
_ID_TAG: Final = 3 << 3 | BYTES
RAW_INPUT_TAG: Final = 7 << 3 | BYTES
_RAW_OUTPUT_TAG: Final = bytes([6 << 3 | BYTES])


def is_light(data: Buffer) -> bool:
    """Whether a ModelInferRequest may be read at once: it takes 3 ms at most.

    Raises RequestError for what is none.
    """
    end = len(data)
    if end <= LIGHT_BYTES:
        return True
    position = count = kept_bytes = 0
    while position < end:
        start = position
        tag, _, position = next_field(data, position, end)
        count += 1
        if tag != RAW_INPUT_TAG:
            kept_bytes += position - start
        if count > LIGHT_FIELDS_MAX or kept_bytes > LIGHT_STRUCTURE_BYTES:
            return False
    return True


def next_field(data: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """(tag, where the value begins, where it ends) of the field at a position.

    Raises RequestError when there is no whole field before `end`.
    """
    tag, position = _number(data, position)
    kind = tag & 7
    start = position
    if kind == BYTES:
        size, start = _number(data, position)
        position = start + size
    elif kind == VARINT:
        _, position = _number(data, position)
    elif kind == FIXED64:
        position += 8
    elif kind == FIXED32:
        position += 4
    else:  # groups, which no version of this message has
        raise malformed()
    if position > end:
        raise malformed()
    return tag, start, position


def fields(view: memoryview, most: int = FIELDS_MAX) -> Iterator[tuple[int, int, int, int]]:
    """(tag, where it stands, where its value begins, where it ends) of each field.

    Raises RequestError for what is no message, and for more than `most` fields.
    """
    position = count = 0
    while position < len(view):
        count += 1
        if count > most:
            raise too_many_fields(most)
        tag, start, end = next_field(view, position, len(view))
        yield tag, position, start, end
        position = end


def request_id(data: Buffer) -> str:
    """The id in a ModelInferRequest that cannot be read otherwise; "" if not even that can be."""
    found = b""
    position = count = 0
    end = len(data)
    try:
        while position < end and count < LIGHT_FIELDS_MAX:
            tag, start, position = next_field(data, position, end)
            count += 1
            if tag == _ID_TAG:
                found = bytes(data[start:position])
        return found.decode()
    except (RequestError, UnicodeDecodeError):
        return ""


def parsed_request(data: Buffer) -> tuple[Any, list[Buffer]]:
    """A ModelInferRequest without raw_input_contents, and these, in order.

    Large contents are views of `data`. Raises RequestError for what is no such message, or is
    larger than any request needs to be.
    """
    raw: list[Buffer]
    if len(data) <= SMALL_BYTES_MAX:
        message = parsed(ModelInferRequest, bytes(data))
        raw = list(message.raw_input_contents)
        return message, raw
    structure, raw = _cut(data)
    return parsed(ModelInferRequest, structure), raw


def with_raw_outputs(structure: bytes, contents: list[bytes | memoryview]) -> Parts:
    """A serialised ModelInferResponse with these raw_output_contents after all else."""
    parts: Parts = [structure]
    size = 0
    for content in contents:
        parts += (_RAW_OUTPUT_TAG, varint(len(content)), content)
        size += len(content)
    return [b"".join(parts)] if size <= JOINED_BYTES_MAX else parts


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


def parsed(kind: Any, data: bytes) -> Any:
    """A message of this kind, which is a part of a request. Raises RequestError."""
    try:
        return kind.FromString(data)
    except DecodeError as fault:
        raise malformed() from fault


def malformed() -> RequestError:
    return RequestError("the request is not a ModelInferRequest: its bytes cannot be decoded")


def too_many_fields(most: int = FIELDS_MAX) -> RequestError:
    return RequestError(f"more than {most} fields in a request: inputs, parameters and their like")


def too_large(size: int) -> RequestError:
    return RequestError(
        f"{size} bytes beside raw_input_contents, expected at most {STRUCTURE_BYTES_MAX}; send"
        " large tensors as raw_input_contents"
    )


def _cut(data: Buffer) -> tuple[bytes, list[Buffer]]:
    """(everything but raw_input_contents, these as views)."""
    view = memoryview(data)
    kept: list[memoryview] = []
    raw: list[Buffer] = []
    kept_bytes = position = count = 0
    end = len(data)
    while position < end:
        count += 1
        if count > FIELDS_MAX:
            raise too_many_fields()
        start = position
        tag, content, position = next_field(data, position, end)
        if tag == RAW_INPUT_TAG:
            raw.append(view[content:position])
            continue
        kept.append(view[start:position])
        kept_bytes += position - start
    if kept_bytes > STRUCTURE_BYTES_MAX:
        raise too_large(kept_bytes)
    return b"".join(kept), raw


def _number(data: Buffer, position: int) -> tuple[int, int]:
    """(the varint at a position, the position after it)."""
    number = shift = 0
    for byte in data[position : position + _VARINT_BYTES_MAX]:
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise malformed()

"""A RepositoryModelLoadRequest, whose files are views of it. Pure.

A message library copies each file twice, and everybody waits meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

from naiad.client.requests import Buffer
from naiad.gateway.grpc_codec.wire import BYTES, fields, parsed
from naiad.gateway.proto.inference_pb2 import RepositoryModelLoadRequest
from naiad.protocol.errors import RequestError

FILE_BYTES_MIN: Final = 4 * 1024
"""Smaller ones are copied."""
PARAMETERS_MAX: Final = 256
FIELDS_MAX: Final = 2 * PARAMETERS_MAX
STRUCTURE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of a message without its files: twice what a configuration may have."""

_PARAMETER_TAG: Final = 3 << 3 | BYTES
_KEY_TAG: Final = 1 << 3 | BYTES
_VALUE_TAG: Final = 2 << 3 | BYTES
_CHOICES: Final = frozenset({1, 2, 3, 4})
_BYTES_CHOICE: Final = 4

File = tuple[str, memoryview]


def load_request(data: Buffer) -> tuple[Any, dict[str, Buffer]]:
    """(the message without large parameters of bytes, these by name).

    Raises RequestError for what is no such message, or has too much in it.
    """
    view = memoryview(data)
    files: dict[str, Buffer] = {}
    kept: list[memoryview] = []
    kept_bytes = parameters = 0
    for tag, position, start, end in fields(view, FIELDS_MAX):
        if tag == _PARAMETER_TAG:
            parameters += 1
            if parameters > PARAMETERS_MAX:
                raise RequestError(
                    f"{parameters} load parameters or more, expected at most {PARAMETERS_MAX}"
                )
            file = _file(view[start:end]) if end - start >= FILE_BYTES_MIN else None
            if file is not None:
                files[file[0]] = file[1]
                continue
        kept.append(view[position:end])
        kept_bytes += end - position
    if kept_bytes > STRUCTURE_BYTES_MAX:
        raise RequestError(
            f"{kept_bytes} bytes beside files in a load, expected at most {STRUCTURE_BYTES_MAX}"
        )
    return parsed(RepositoryModelLoadRequest, b"".join(kept)), files


def _file(entry: memoryview) -> File | None:
    """(name, bytes) of a parameter; None: it is something else than bytes."""
    name = b""
    value = entry[:0]
    for tag, _, start, end in fields(entry, FIELDS_MAX):
        if tag == _KEY_TAG:
            name = bytes(entry[start:end])
        elif tag == _VALUE_TAG:
            value = entry[start:end]
    content: memoryview | None = None
    for tag, _, start, end in fields(value, FIELDS_MAX):
        if tag == _BYTES_CHOICE << 3 | BYTES:
            content = value[start:end]
        elif tag >> 3 in _CHOICES:
            content = None
    if content is None:
        return None
    try:
        return name.decode(), content
    except UnicodeDecodeError:
        return None

"""A look into a model's file for what no engine could load: absent, empty, a pointer, other bytes.

For `naiad check`, which loads nothing: a server finds this and more by loading. Reads a few bytes
of each part of a file, however large it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Final

from naiad.config.backends import DEFAULT_FILENAME
from naiad.config.entries import DIRECTORY, FILE, what_is_at
from naiad.config.faults import Fault
from naiad.config.model import ModelConfig
from naiad.config.names import inner_path_fault, printable

_LFS_START: Final = b"version https://git-lfs"
_ORT_MARK: Final = b"ORTM"
"""At offset 4 of a file in ONNX Runtime's own format."""
_HEAD_BYTES: Final = 64
_GRAPH_FIELD: Final = 7
"""Of ONNX's ModelProto."""
_FIELD_MAX: Final = 100
"""ModelProto's numbers end at 26; more than this is none of it."""
_FIELDS_MAX: Final = 10_000
_VARINT_BYTES_MAX: Final = 10


def model_file_faults(
    config: ModelConfig, directory: str, versions: tuple[int, ...]
) -> list[Fault]:
    """What is wrong with the files of these versions. Other packages' backends are not judged."""
    name = config.default_model_filename or DEFAULT_FILENAME.get(config.backend, "")
    if config.backend not in ("onnxruntime", "python") or not name or inner_path_fault(name):
        return []
    faults: list[Fault] = []
    for version in versions:
        path = os.path.join(directory, str(version), name)
        if config.backend == "onnxruntime" and what_is_at(path) == DIRECTORY:
            path = os.path.join(path, DEFAULT_FILENAME["onnxruntime"])  # beside its external data
        faults += _faults(path, is_onnx=config.backend == "onnxruntime")
    return faults


def _faults(path: str, *, is_onnx: bool) -> Iterator[Fault]:
    shown = printable(path)
    kind = what_is_at(path)
    if kind != FILE:
        yield Fault("", f"expected the model's file, but {shown} is {kind}", "put the file there")
        return
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
            is_broken = is_onnx and head[4:8] != _ORT_MARK and not _holds_graph(file)
    except OSError as error:
        remedy = "give this user the right to read it"
        yield Fault("", f"cannot read {shown} ({error.strerror})", remedy)
        return
    if not head:
        yield Fault("", f"{shown} is empty", "put the model's file there")
    elif head.startswith(_LFS_START):
        yield Fault(
            "",
            f"{shown} is a pointer of Git LFS, not the model",
            "run `git lfs pull` where the repository was cloned, or download the file itself",
        )
    elif is_broken:
        yield Fault(
            "",
            f"{shown} is no ONNX model, or only a part of one",
            "export or copy it again, or name the right file with default_model_filename",
        )


def _holds_graph(file: BinaryIO) -> bool:
    """Whether the file is, on its top level, protobuf from the first byte to the last, with the
    field that holds the graph."""
    size = file.seek(0, os.SEEK_END)
    position = 0
    has_graph = False
    for _ in range(_FIELDS_MAX):
        if position == size:
            return has_graph
        file.seek(position)
        head = file.read(2 * _VARINT_BYTES_MAX)
        tag, used = _varint(head, 0)
        field, kind = tag >> 3, tag & 7
        if not used or not 1 <= field <= _FIELD_MAX:
            return False
        if kind == 0:
            _, used = _varint(head, used)
            length = 0
        elif kind == 2:
            length, used = _varint(head, used)
            has_graph = has_graph or (field == _GRAPH_FIELD and length > 0)
        else:
            length = {1: 8, 5: 4}.get(kind, size)
        position += used + length
        if not used or position > size:
            return False
    return False


def _varint(content: bytes, begin: int) -> tuple[int, int]:
    """(the number, where it ends), or (0, 0) where there is none."""
    number = 0
    for index, byte in enumerate(content[begin : begin + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, begin + index + 1
    return 0, 0

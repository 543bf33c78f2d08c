"""A look into a model's file for what no engine could load: absent, empty, a pointer, other bytes.

For `naiad check` and `naiad build`; a server finds this and more by loading. Reads little of a
file, however large it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Final

from naiad.config.backends import DEFAULT_FILENAME
from naiad.config.entries import DIRECTORY, FILE, what_is_at
from naiad.config.faults import Fault, listed
from naiad.config.model import ModelConfig
from naiad.config.names import inner_path_fault, printable
from naiad.config.onnx_outline import Broken, Outline, read_outline

_LFS_START: Final = b"version https://git-lfs"
_PAGE_STARTS: Final = (b"<!doctype", b"<html", b"<?xml")
_ORT_MARK: Final = b"ORTM"
"""At offset 4 of a file in ONNX Runtime's own format."""
_HEAD_BYTES: Final = 64
_ONNX: Final = "onnxruntime"
_PLAN: Final = "tensorrt"
_JUDGED: Final = frozenset({_ONNX, _PLAN, "python"})


def model_file_faults(
    config: ModelConfig, directory: str, versions: tuple[int, ...]
) -> list[Fault]:
    """What is wrong with the files of these versions. Other packages' backends are not judged."""
    backend = config.backend
    name = config.default_model_filename or DEFAULT_FILENAME.get(backend, "")
    if backend not in _JUDGED or not name:
        return []
    names = sorted({name, *filter(None, config.cc_model_filenames.values())})
    if any(map(inner_path_fault, names)):
        return []
    faults: list[Fault] = []
    for version in versions:
        folder = os.path.join(directory, str(version))
        there = [one for one in names if what_is_at(os.path.join(folder, one)) == FILE]
        for one in there or [name]:
            path = os.path.join(folder, one)
            if backend == _ONNX and what_is_at(path) == DIRECTORY:
                path = os.path.join(path, DEFAULT_FILENAME[_ONNX])  # beside its external data
            faults += file_faults(path, backend)
    return faults


def file_faults(path: str, backend: str) -> Iterator[Fault]:
    """What is wrong with the file at a path as a model of this backend."""
    shown = printable(path)
    kind = what_is_at(path)
    if kind != FILE:
        yield Fault("", f"expected the model's file, but {shown} is {kind}", "put the file there")
        return
    try:
        with open(path, "rb") as file:
            yield from _content_faults(file, path, backend)
    except OSError as error:
        remedy = "give this user the right to read it"
        yield Fault("", f"cannot read {shown} ({error.strerror})", remedy)


def outline_of(path: str) -> Outline:
    """Of an ONNX file without faults; empty for one in ONNX Runtime's own format."""
    with open(path, "rb") as file:
        if file.read(_HEAD_BYTES)[4:8] == _ORT_MARK:
            return Outline()
        return read_outline(file)


def _content_faults(file: BinaryIO, path: str, backend: str) -> Iterator[Fault]:
    shown = printable(path)
    head = file.read(_HEAD_BYTES)
    if not head:
        yield Fault("", f"{shown} is empty", "put the model's file there")
    elif head.startswith(_LFS_START):
        yield Fault(
            "",
            f"{shown} is a pointer of Git LFS, not the model",
            "run `git lfs pull` where the repository was cloned, or download the file itself",
        )
    elif backend != "python" and head.lstrip().lower().startswith(
        (b"<!doctype", b"<html", b"<?xml")
    ):
        yield Fault("", f"{shown} is a web page, not the model", "download the raw file instead")
    elif backend == _ONNX and head[4:8] != _ORT_MARK:
        yield from _onnx_faults(file, path)
    elif backend == _PLAN and _is_onnx(file):
        yield Fault(
            "",
            f"{shown} is an ONNX model, not a TensorRT plan",
            'build one with `naiad build`, or serve it as it is with backend: "onnxruntime"',
        )


def _onnx_faults(file: BinaryIO, path: str) -> Iterator[Fault]:
    try:
        outline = read_outline(file)
    except Broken:
        yield Fault(
            "",
            f"{printable(path)} is no ONNX model, or only a part of one",
            "export or copy it again, or name the right file with default_model_filename",
        )
        return
    folder = os.path.dirname(path)
    absent = [
        name
        for name in sorted(outline.external)
        if not inner_path_fault(name) and what_is_at(os.path.join(folder, name)) != FILE
    ]
    if absent:
        yield Fault(
            "",
            f"{printable(path)} has its weights in other files, and of these are not beside it: "
            f"{listed([printable(name) for name in absent])}",
            "copy them there, or export the model into one file",
        )


def _is_onnx(file: BinaryIO) -> bool:
    try:
        read_outline(file)
    except Broken:
        return False
    return True

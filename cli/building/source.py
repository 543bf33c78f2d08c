"""What is built from: a model's directory, the version, its ONNX file, its config. Reads the disk.

Nothing is loaded here, and no backend has to be installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from naiad.cli.building.plan_config import ONNX_SUFFIX
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.config.backends import DEFAULT_FILENAME, PLATFORM_BACKEND, TENSORRT_DATATYPE
from naiad.config.entries import DIRECTORY, FILE, NOTHING, what_is_at
from naiad.config.faults import listed
from naiad.config.model import ModelConfig
from naiad.config.model_directory import ENTRIES_MAX, looks_like_model
from naiad.config.model_file import file_faults, outline_of
from naiad.config.names import printable
from naiad.config.normalise import complete
from naiad.config.pbtxt import CONFIG_BYTES_MAX, FILE_NAME, parse
from naiad.config.validate import validate
from naiad.config.versions import version_of

ONNX: Final = "onnxruntime"
TENSORRT: Final = "tensorrt"
PLAN_SUFFIX: Final = ".plan"
NOT_IN_TENSORRT: Final = {
    4: "UINT16", 5: "INT16", 8: "BYTES (text)", 11: "FP64", 12: "UINT32", 13: "UINT64",
}  # fmt: skip
"""Element types of requests, by ONNX's numbers."""


@dataclass(frozen=True, slots=True)
class Source:
    """`config` is as written, with names filled in. `names_engine`: it says which backend serves
    the model; without, a server goes by the files that it finds. `serves_plan`: it names TensorRT.
    """

    directory: str
    version: int
    onnx: str
    plan: str
    config: ModelConfig
    has_config: bool
    names_engine: bool
    serves_plan: bool


def find_source(directory: str, version: int | None) -> Source:
    """The newest version with an ONNX file, or the given one. Raises CommandFailed."""
    directory = os.path.abspath(directory)
    shown = printable(directory)
    try:
        entries = sorted(os.listdir(directory))[:ENTRIES_MAX]
    except OSError as fault:
        raise CommandFailed(
            f"cannot read {shown} ({fault.strerror}); give one model's directory, such as "
            "model_repository/NAME",
            ExitCode.USAGE,
        ) from fault
    if not looks_like_model(directory, entries):
        raise CommandFailed(
            f"{shown} is no model: it has neither a {FILE_NAME} nor a version with a model's file; "
            "give one model's directory, such as model_repository/NAME",
            ExitCode.USAGE,
        )
    written = _written_config(directory) if FILE_NAME in entries else {}
    filename = str(written.get("default_model_filename") or DEFAULT_FILENAME[TENSORRT])
    stem = os.path.splitext(filename)[0]
    found = {
        number: onnx
        for number in map(version_of, entries)
        if isinstance(number, int)
        and (onnx := _onnx_at(os.path.join(directory, str(number), stem + ONNX_SUFFIX)))
    }
    if not found or (version is not None and version not in found):
        raise CommandFailed(
            _no_onnx(directory, stem + ONNX_SUFFIX, sorted(found), version, entries),
            ExitCode.USAGE,
        )
    chosen = max(found) if version is None else version
    return Source(
        directory,
        chosen,
        found[chosen],
        os.path.join(directory, str(chosen), stem + PLAN_SUFFIX),
        _config(directory, written),
        has_config=FILE_NAME in entries,
        names_engine=any(
            written.get(key) for key in ("backend", "platform", "default_model_filename")
        ),
        serves_plan=TENSORRT in (written.get("backend"), _platform_backend(written)),
    )


def _platform_backend(written: dict[str, object]) -> str:
    return PLATFORM_BACKEND.get(str(written.get("platform")), "")


def _onnx_at(path: str) -> str:
    """A directory of that name holds the file beside its external data."""
    if what_is_at(path) == DIRECTORY:
        path = os.path.join(path, DEFAULT_FILENAME[ONNX])
    return path if what_is_at(path) == FILE else ""


def refuse_unfit(path: str) -> None:
    """What TensorRT would say of the file in riddles, or not at all. Raises CommandFailed."""
    faults = list(file_faults(path, ONNX))
    if faults:
        raise CommandFailed("\n".join(map(str, faults)))
    outline = outline_of(path)
    both = [f'"{name}"' for name in outline.inputs if name in outline.outputs]
    if both:
        raise CommandFailed(
            f"{printable(path)}: {listed(both)} is an input and an output, which TensorRT renames;"
            " put an Identity between, with an output of another name"
        )
    free = [f'input "{name}"' for name in outline.inputs if name in outline.without_shape]
    if free:
        raise CommandFailed(
            f"{printable(path)}: {listed(free)} has no shape, which TensorRT takes for a scalar;"
            " give it one inside the ONNX, free dimensions by name (onnx.helper, or export again)"
        )
    sides = (("input", outline.inputs), ("output", outline.outputs))
    unfit = [
        f'{side} "{name}" is {NOT_IN_TENSORRT[element]}'
        for side, elements in sides
        for name, element in elements.items()
        if element in NOT_IN_TENSORRT
    ]
    if unfit:
        raise CommandFailed(
            f"{printable(path)}: {listed(unfit)}, which TensorRT does not have (FP64 would become "
            "FP32 without a word); cast inside the ONNX to one of "
            f"{listed(list(TENSORRT_DATATYPE.values()))}"
        )


def _no_onnx(
    directory: str,
    filename: str,
    found: Sequence[int],
    version: int | None,
    entries: Sequence[str],
) -> str:
    if version is not None:
        path = os.path.join(directory, str(version), filename)
        have = f"versions with one: {listed([str(number) for number in found])}"
        return f"there is no ONNX file {printable(path)}{_instead(path)}; {have}"
    numbers = [number for number in map(version_of, entries) if isinstance(number, int)]
    path = os.path.join(directory, str(max(numbers, default=1)), filename)
    return (
        f"no version of {printable(directory)} holds an ONNX file, and plans are built from one; "
        f"put it at {printable(path)}{_instead(path)}"
    )


def _instead(path: str) -> str:
    """What is at a place where there is no file, if anything."""
    kind = what_is_at(path)
    if kind == DIRECTORY:
        return f", which is a directory without a {DEFAULT_FILENAME[ONNX]}"
    return "" if kind == NOTHING else f", which is {kind}"


def _written_config(directory: str) -> dict[str, object]:
    path = os.path.join(directory, FILE_NAME)
    try:
        with open(path, "rb") as file:
            parsed = parse(file.read(CONFIG_BYTES_MAX + 1))
    except OSError as fault:
        raise CommandFailed(f"cannot read {printable(path)} ({fault.strerror})") from fault
    if parsed.json is None or parsed.faults:
        raise CommandFailed("\n".join(map(str, parsed.faults)))
    return parsed.json


def _config(directory: str, written: dict[str, object]) -> ModelConfig:
    """The plan's backend completes it later, so here it counts as an ONNX model's."""
    as_onnx = {**written, "backend": ONNX, "platform": "", "default_model_filename": ""}
    completed = complete(as_onnx, directory_name=os.path.basename(directory), files=())
    config = ModelConfig.from_json({**completed.json, "platform": ""})
    # What the config says of instances is not for here: they move to a GPU.
    checked = config.with_fields(instance_group=[])
    faults = [*completed.faults, *validate(checked)]
    if faults:
        raise CommandFailed("\n".join(map(str, faults)))
    return config

"""Small models for tests of whole servers, written into a repository on the spot.

A tensor is given as "NAME TYPE dims...": "INPUT0 FP32 -1 16". Backends: the echo (`add_echo`),
a model.py (`add_python`), an ONNX graph (`add_onnx_echo`, `add_onnx_adder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from naiad.protocol.datatypes import CONFIG_NAME
from support.onnx_models import Tensor, write_echo, write_model


def config_text(
    name: str,
    backend: str,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    *,
    max_batch_size: int = 0,
    instances: int = 1,
    parameters: Mapping[str, object] | None = None,
    extra: str = "",
) -> str:
    """The text of a config.pbtxt."""
    lines = [f'name: "{name}"', f'backend: "{backend}"', f"max_batch_size: {max_batch_size}"]
    lines += [_tensor("input", one) for one in inputs]
    lines += [_tensor("output", one) for one in outputs]
    lines.append(f"instance_group {{ kind: KIND_CPU count: {instances} }}")
    lines += [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in (parameters or {}).items()
    ]
    return "\n".join([*lines, extra, ""])


def _tensor(side: str, given: str) -> str:
    name, datatype, *dims = given.split()
    config_type = CONFIG_NAME.get(datatype, datatype)
    return f'{side} {{ name: "{name}" data_type: {config_type} dims: [ {", ".join(dims)} ] }}'


def write_config(repository: Path, name: str, text: str, versions: Sequence[int] = (1,)) -> Path:
    """A model's directory with this config.pbtxt and empty version directories."""
    directory = repository / name
    directory.mkdir(exist_ok=True)
    for version in versions:
        (directory / str(version)).mkdir(exist_ok=True)
    (directory / "config.pbtxt").write_text(text)
    return directory


def add_echo(
    repository: Path,
    name: str,
    tensor: str = "FP32 16",
    *,
    max_batch_size: int = 0,
    instances: int = 1,
    parameters: Mapping[str, object] | None = None,
    extra: str = "",
    versions: Sequence[int] = (1,),
) -> Path:
    """INPUT0 → OUTPUT0 by the echo backend, whose parameters also make trouble on request."""
    text = config_text(
        name,
        "identity",
        [f"INPUT0 {tensor}"],
        [f"OUTPUT0 {tensor}"],
        max_batch_size=max_batch_size,
        instances=instances,
        parameters=parameters,
        extra=extra,
    )
    return write_config(repository, name, text, versions)


def add_python(
    repository: Path,
    name: str,
    source: str,
    inputs: Sequence[str] = ("INPUT0 FP32 16",),
    outputs: Sequence[str] = ("OUTPUT0 FP32 16",),
    *,
    max_batch_size: int = 0,
    instances: int = 1,
    parameters: Mapping[str, object] | None = None,
    extra: str = "",
    versions: Sequence[int] = (1,),
) -> Path:
    """A model.py with this source (see models_python)."""
    text = config_text(
        name,
        "python",
        inputs,
        outputs,
        max_batch_size=max_batch_size,
        instances=instances,
        parameters=parameters,
        extra=extra,
    )
    directory = write_config(repository, name, text, versions)
    for version in versions:
        (directory / str(version) / "model.py").write_text(source)
    return directory


def add_onnx_echo(
    repository: Path,
    name: str,
    datatype: str = "FP32",
    dims: Sequence[int | str | None] = ("n", 16),
    config: str = "",
) -> Path:
    """INPUT0 → OUTPUT0 by an Identity node; the config is completed from the graph."""
    directory = write_echo(repository / name, datatype, dims)
    if config:
        (directory / "config.pbtxt").write_text(config)
    return directory


def add_onnx_adder(
    repository: Path, name: str, *, dims: Sequence[int | str | None] = ("n", 16)
) -> Path:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""
    return write_model(
        repository / name,
        [
            ("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            ("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [Tensor("INPUT0", "FP32", dims), Tensor("INPUT1", "FP32", dims)],
        [Tensor("OUTPUT0", "FP32", dims), Tensor("OUTPUT1", "FP32", dims)],
    )

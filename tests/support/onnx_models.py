"""Tiny ONNX models, made when a test asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto, helper, numpy_helper

from naiad.protocol.datatypes import NUMPY_NAME

ELEMENT = {
    **{name: getattr(TensorProto, name) for name in NUMPY_NAME if hasattr(TensorProto, name)},
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
OPSET, IR = 17, 8

Dims = Sequence[int | str | None] | None


class Tensor(NamedTuple):
    """name, datatype (BOOL, FP32, ...), dims (a text or None is free; dims None: untold)."""

    name: str
    datatype: str
    dims: Dims


def write_model(
    directory: Path,
    nodes: Sequence[tuple[Any, ...]],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    initialisers: dict[str, Any] | None = None,
    filename: str = "model.onnx",
) -> Path:
    """Write `<directory>/1/<filename>`; a node is (operator, inputs, outputs, attributes)."""
    graph = helper.make_graph(
        [
            helper.make_node(operator, list(takes), list(gives), **(rest[0] if rest else {}))
            for operator, takes, gives, *rest in nodes
        ],
        "test",
        [_info(tensor) for tensor in inputs],
        [_info(tensor) for tensor in outputs],
        [numpy_helper.from_array(array, name) for name, array in (initialisers or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    path = directory / "1" / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return directory


def _info(tensor: Tensor) -> Any:
    return helper.make_tensor_value_info(tensor.name, ELEMENT[tensor.datatype], tensor.dims)


def write_echo(directory: Path, datatype: str, dims: Dims) -> Path:
    """OUTPUT0 = INPUT0, by an Identity node."""
    return write_model(
        directory,
        [("Identity", ["INPUT0"], ["OUTPUT0"])],
        [Tensor("INPUT0", datatype, dims)],
        [Tensor("OUTPUT0", datatype, dims)],
    )

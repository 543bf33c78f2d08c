"""The TensorRT backend over the fakes: engines of small ONNX models, served and asked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import naiad
from naiad.worker.backends.base import ModelInstance
from naiad.worker.backends.tensorrt.backend import TensorRTBackend
from support import fake_cudart, fake_trt
from support.backend_requests import Array, Served, instance
from support.onnx_models import Tensor, write_model

MODULES: dict[str, Any] = {
    "cuda.bindings.runtime": fake_cudart,
    "tensorrt": fake_trt,
    "tensorrt_rtx": fake_trt,
}
FILENAME = "model.plan"
AFFINE = [{"x": [[1, 4], [2, 4], [8, 4]]}]
"""The one profile that most tests give the engine of `write_affine`."""


def importer(name: str) -> Any:
    """What a worker with TensorRT and TensorRT-RTX can import."""
    if name not in MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}")
    return MODULES[name]


def put_plan(
    directory: Path,
    profiles: Sequence[Mapping[str, Any]] = ({},),
    *,
    filename: str = FILENAME,
    **header: Any,
) -> Path:
    """An engine of the ONNX file that is in `<directory>/1` already."""
    path = directory / "1" / filename
    path.write_bytes(fake_trt.plan(directory / "1" / "model.onnx", profiles, **header))
    return directory


def on_gpu(
    directory: Path, config: Mapping[str, Any] | None = None, **fields: Any
) -> ModelInstance:
    config = {"backend": "tensorrt", **(config or {})}
    return instance(directory, config, kind=fields.pop("kind", "KIND_GPU"))


def load(directory: Path, config: Mapping[str, Any] | None = None, **fields: Any) -> Served:
    return Served(TensorRTBackend(importer), on_gpu(directory, config, **fields))


def expected(directory: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime says, run in its own way."""
    session = onnxruntime.InferenceSession(
        str(directory / "1" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    names = [node.name for node in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


PLANTED = "import sys\nfrom support import {0}\nsys.modules[__name__] = {0}\n"


def plant(folder: Path) -> str:
    """A PYTHONPATH on which the fakes are found before any real package."""
    bindings = folder / "cuda" / "bindings"
    bindings.mkdir(parents=True)
    for package in (bindings.parent, bindings):
        (package / "__init__.py").touch()
    (bindings / "runtime.py").write_text(PLANTED.format("fake_cudart"))
    (folder / "tensorrt.py").write_text(PLANTED.format("fake_trt"))
    source = Path(naiad.__file__).parent.parent
    return os.pathsep.join(map(str, (folder, source, Path(__file__).parents[1])))


# --- Models ------------------------------------------------------------------------------------


def write_affine(directory: Path) -> Path:
    """y = 2x + 1 of [n, 4]."""
    two, one = np.array(2, np.float32), np.array(1, np.float32)
    return write_model(
        directory,
        [("Mul", ["x", "two"], ["doubled"]), ("Add", ["doubled", "one"], ["y"])],
        [Tensor("x", "FP32", ["n", 4])],
        [Tensor("y", "FP32", ["n", 4])],
        initialisers={"two": two, "one": one},
    )


def write_classifier(directory: Path) -> Path:
    """Two inputs, and outputs of two types: scores of [n, 3] and the best's number."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    return write_model(
        directory,
        [
            ("Add", ["a", "b"], ["sum"]),
            ("MatMul", ["sum", "weights"], ["logits"]),
            ("Softmax", ["logits"], ["scores"], {"axis": 1}),
            ("ArgMax", ["logits"], ["best"], {"axis": 1, "keepdims": 0}),
        ],
        [Tensor("a", "FP32", ["n", 4]), Tensor("b", "FP32", ["n", 4])],
        [Tensor("scores", "FP32", ["n", 3]), Tensor("best", "INT64", ["n"])],
        initialisers={"weights": weights},
    )


def write_two(directory: Path) -> Path:
    """Two inputs of free sizes, each with an output of its own."""
    return write_model(
        directory,
        [("Abs", ["a"], ["c"]), ("Neg", ["b"], ["d"])],
        [Tensor("a", "FP32", ["n", "s"]), Tensor("b", "FP32", ["n", "t"])],
        [Tensor("c", "FP32", ["n", "s"]), Tensor("d", "FP32", ["n", "t"])],
    )


def write_mixed(directory: Path) -> Path:
    """p = a + b·M and q = p·N: rows of four sizes, and exact for small whole numbers."""
    return write_model(
        directory,
        [
            ("MatMul", ["b", "m"], ["bm"]),
            ("Add", ["a", "bm"], ["p"]),
            ("MatMul", ["p", "n"], ["q"]),
        ],
        [Tensor("a", "FP32", ["n", 4]), Tensor("b", "FP32", ["n", 2])],
        [Tensor("p", "FP32", ["n", 4]), Tensor("q", "FP32", ["n", 3])],
        initialisers={"m": MIXED_M, "n": MIXED_N},
    )


MIXED_M = np.arange(8, dtype=np.float32).reshape(2, 4) - 3
MIXED_N = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def write_blur(directory: Path) -> Path:
    """A convolution over pictures of any size."""
    kernel = np.linspace(-1, 1, 27, dtype=np.float32).reshape(1, 3, 3, 3)
    return write_model(
        directory,
        [("Conv", ["image", "kernel"], ["out"], {"pads": [1, 1, 1, 1]})],
        [Tensor("image", "FP32", ["n", 3, "h", "w"])],
        [Tensor("out", "FP32", ["n", 1, "h", "w"])],
        initialisers={"kernel": kernel},
    )


REST = np.arange(1000, dtype=np.float32)
REST_CONFIG: dict[str, Any] = {
    "max_batch_size": 0,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def write_rest(directory: Path) -> Path:
    """An output that shrinks as the input grows: of 1000 numbers the last 1000 - n, plus x[0]."""
    return write_model(
        directory,
        [
            ("Shape", ["x"], ["n"]),
            ("Slice", ["numbers", "n", "end", "axis"], ["part"]),
            ("Gather", ["x", "axis"], ["first"]),
            ("Add", ["part", "first"], ["y"]),
        ],
        [Tensor("x", "FP32", ["n"])],
        [Tensor("y", "FP32", ["m"])],
        initialisers={"numbers": REST, "end": np.array([1000]), "axis": np.array([0])},
    )


def rest(x: Array) -> Array:
    y: Array = REST[len(x) :] + x[0]
    return y


def write_nonzero(directory: Path) -> Path:
    """An output whose size depends on the data."""
    return write_model(
        directory,
        [("NonZero", ["x"], ["where"]), ("Abs", ["x"], ["size"])],
        [Tensor("x", "FP32", [8])],
        [Tensor("where", "INT64", [1, "found"]), Tensor("size", "FP32", [8])],
    )


def write_expand(directory: Path) -> Path:
    """A shape tensor: x of [1, 3] is repeated to the shape that is asked for."""
    return write_model(
        directory,
        [("Expand", ["x", "shape"], ["y"]), ("Identity", ["shape"], ["told"])],
        [Tensor("x", "FP32", [1, 3]), Tensor("shape", "INT64", [2])],
        [Tensor("y", "FP32", ["rows", 3]), Tensor("told", "INT64", [2])],
    )


def write_spread(directory: Path) -> Path:
    """The same with batches: x of [n, 1] is repeated to the shape, whose first value is n."""
    return write_model(
        directory,
        [("Expand", ["x", "shape"], ["y"]), ("Identity", ["shape"], ["told"])],
        [Tensor("shape", "INT64", [2]), Tensor("x", "FP32", ["n", 1])],
        [Tensor("y", "FP32", ["n", "k"]), Tensor("told", "INT64", [2])],
    )


def random(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

"""Real engines by naiad's backend, where some TensorRT is installed; refusals in its own words.

A plan that was given must run. One built here, by the same package, may be refused for the GPU:
TensorRT-RTX does not support all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np

from gpu_checks import rows
from gpu_checks.arguments import ARRAYS_SUFFIX
from gpu_checks.backend_requests import Input, loaded
from gpu_checks.gpu import host_microseconds
from gpu_checks.rows import Row
from gpu_checks.steps import Options
from naiad.config.backends import TENSORRT_MODULES, tensorrt_imports
from naiad.config.model import ModelConfig
from naiad.protocol.datatypes import NUMPY_NAME
from naiad.protocol.errors import NaiadError
from naiad.worker.backends.base import ModelRequest

WIDTH, OUT, ROWS_MAX = 64, 32, 16
TOLERANCE: Final = 2e-2
"""Relative to the largest expected number: engines may use TF32 and other orders of adding."""
ROUNDS: Final = 100


def prove(options: Options) -> Iterator[Row]:
    there: dict[str, Any] = {}
    for name in TENSORRT_MODULES:
        module, fault = _imported(name)
        if module is None:
            yield rows.skipped(f"engines of {name}", fault)
        else:
            there[name] = module
    for name, module in there.items():
        yield from _built_here(name, module)
    for plan in options.plans:
        yield from _given(Path(plan), bool(there))


def _imported(name: str) -> tuple[Any, str]:
    fault = ""
    for module in tensorrt_imports(name):
        try:
            return import_module(module), ""
        except ImportError as error:
            fault = str(error)
    return None, f"not importable: {fault}"


def _built_here(name: str, trt: Any) -> Iterator[Row]:
    what = f"{name} {trt.__version__}: a plan built here"
    if not hasattr(trt, "Builder"):
        yield rows.skipped(what, f"{name} builds none; give one with --plan")
        return
    weights = np.random.default_rng(1).standard_normal((WIDTH, OUT)).astype(np.float32)
    begin = perf_counter()
    plan = _dense(trt, weights)
    if plan is None:
        yield rows.failed(what, "the builder gave none; its log is above")
        return
    seconds = perf_counter() - begin
    yield rows.told(f"{what}, {len(plan)} bytes", seconds, "s")
    x = np.random.default_rng(2).standard_normal((ROWS_MAX, WIDTH)).astype(np.float32)
    expected = {"y": np.maximum(x @ weights, 0)}
    try:
        yield from _run(what, plan, {"x": x}, expected)
    except NaiadError as error:
        yield rows.skipped(f"{what} runs", f"refused: {error.message}")


def _dense(trt: Any, weights: Any) -> bytes | None:
    """relu(x W), with a free batch."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    x = network.add_input("x", trt.float32, (-1, WIDTH))
    constant = network.add_constant((WIDTH, OUT), trt.Weights(weights)).get_output(0)
    plain = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, plain, constant, plain).get_output(0)
    y = network.add_activation(product, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, WIDTH), (ROWS_MAX, WIDTH), (ROWS_MAX, WIDTH))
    config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    return None if built is None else bytes(built)


def _given(path: Path, has_module: bool) -> Iterator[Row]:
    """With `<path>.npz`: arrays by tensor, of the inputs and, as far as known, of the outputs."""
    what = f"the plan {path.name}"
    if not has_module:
        yield rows.failed(what, "no TensorRT is importable")
        return
    beside = Path(f"{path}{ARRAYS_SUFFIX}")
    try:
        arrays = dict(np.load(beside)) if beside.exists() else {}
        yield from _run(what, path.read_bytes(), arrays, arrays)
    except (NaiadError, OSError, ValueError, BadZipFile) as error:
        yield rows.failed(f"{what} runs", f"refused: {error}")


def _run(
    what: str, plan: bytes, inputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[Row]:
    """Twice, compared; then for its time. Raises NaiadError when it is refused."""
    with loaded(plan) as (backend, config):
        request = _request(config, inputs)
        found = [_outputs(backend.execute([request])) for _ in range(2)]
        equal = all(np.array_equal(found[0][name], found[1][name]) for name in found[0])
        yield rows.holds(f"{what} runs, twice the same", equal, f"{sorted(found[0])}")
        for name, array in found[0].items():
            if name not in expected:
                continue
            wanted = expected[name]
            scale = max(1e-6, float(np.abs(wanted).max()))
            difference = float(np.abs(array.reshape(wanted.shape) - wanted).max()) / scale
            yield rows.at_most(f"{what}: '{name}' differs by", difference, TOLERANCE, "x")
        times = []
        for _ in range(ROUNDS):
            begin = perf_counter()
            backend.execute([request])
            times.append(host_microseconds(begin))
        yield rows.told(f"{what}: a batch", median(times), "us", "p50")


def _request(config: ModelConfig, given: Mapping[str, Any]) -> ModelRequest:
    inputs: dict[str, Any] = {}
    lead = (1,) if config.max_batch_size > 0 else ()
    for tensor in config.inputs:
        dtype = np.dtype(NUMPY_NAME.get(tensor.data_type, "uint16"))
        array = given.get(tensor.name)
        if array is None:
            shape = (*lead, *(1 if size == -1 else size for size in tensor.model_dims))
            array = np.ones(shape, dtype)
        array = np.ascontiguousarray(array, dtype)
        view = array.reshape(-1).view(np.uint8).data
        inputs[tensor.name] = Input(tensor.name, tensor.data_type, array.shape, view)
    return ModelRequest("", inputs, tuple(tensor.name for tensor in config.outputs))


def _outputs(answers: Sequence[Any]) -> dict[str, Any]:
    (answer,) = answers
    if isinstance(answer, NaiadError):
        raise answer
    found = {}
    for output in answer.outputs:
        dtype = np.dtype(NUMPY_NAME.get(output.datatype, "uint16"))
        content = np.frombuffer(output.buffer, dtype) if output.array is None else output.array
        found[output.name] = np.array(content).reshape(output.shape)
    return found

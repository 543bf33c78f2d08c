"""Opening an ONNX Runtime session as a model's config asks: file, options, providers, declarations.

Owns every name of ONNX Runtime's API except the run calls; knows nothing of requests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import onnxruntime

from naiad.config.accelerators import GPU_ACCELERATORS
from naiad.config.backend_parameters import BACKEND_PARAMETERS
from naiad.config.faults import listed
from naiad.config.model import ModelConfig
from naiad.protocol.datatypes import ITEM_BYTES
from naiad.protocol.errors import Code, ModelError
from naiad.worker.backends.base import ModelInstance
from naiad.worker.backends.completion import DeclaredTensor
from naiad.worker.backends.onnx_providers import CPU, Provider, gpu_providers

DEFAULT_FILENAME: Final = "model.onnx"
LOG_FATAL_ONLY: Final = 4
"""Everything else is raised as well, and a client's faults must not fill the log."""

_TYPE: Final = re.compile(r"tensor\((\w+)\)")
_DATATYPE: Final = {
    "float": "FP32",
    "double": "FP64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "string": "BYTES",
    **{name.lower(): name for name in ITEM_BYTES if "INT" in name or name == "BOOL"},
}
_GRAPH_LEVEL: Final = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""optimization.graph.level, as Triton's ONNX Runtime backend counts."""

_ARENA_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"


def load_error(text: str) -> ModelError:
    return ModelError(text, code=Code.LOAD_FAILED)


def open_session(instance: ModelInstance) -> onnxruntime.InferenceSession:
    """The session for this instance. Raises ModelError (LOAD_FAILED)."""
    # The worker's environment silences it whole; this does what it can where that is missing.
    onnxruntime.disable_telemetry_events()
    path = model_path(instance)
    options = session_options(instance)
    providers = execution_providers(instance)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:
        raise load_error(f"{path}: ONNX Runtime cannot load it: {reason(error)}") from error
    session.disable_fallback()  # a model must not move to another device by itself
    wanted = providers[0][0]
    if wanted not in session.get_providers():
        raise load_error(
            f"ONNX Runtime could not start {wanted} and would run the model on the CPU instead; "
            f"{_devices()}. Its own libraries (CUDA, cuDNN) must be installed in the versions this "
            "onnxruntime-gpu was built for; or set kind: KIND_CPU"
        )
    return session


def model_path(instance: ModelInstance) -> Path:
    """The model file: `<directory>/<version>/<default_model_filename, else model.onnx>`.

    A directory of that name holds a model.onnx beside its external data.
    """
    name = instance.config.default_model_filename or DEFAULT_FILENAME
    path = Path(instance.directory) / str(instance.version) / name
    if path.is_dir():
        path /= DEFAULT_FILENAME
    if not path.is_file():
        folder = path.parent
        there = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        raise load_error(
            f"no model file {path} (there: {listed(there, empty='nothing')}); put it there, or "
            "name it with default_model_filename"
        )
    return path


def session_options(instance: ModelInstance) -> onnxruntime.SessionOptions:
    """Triton's parameters; without them the instance's own share of threads."""
    config = instance.config
    options = onnxruntime.SessionOptions()
    options.log_severity_level = LOG_FATAL_ONLY
    threads = max(0, instance.threads)
    options.intra_op_num_threads = _number(config, "intra_op_thread_count", threads)
    options.inter_op_num_threads = _number(config, "inter_op_thread_count", threads)
    if _number(config, "execution_mode", 0) == 1:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = _number(config, "enable_mem_arena", 1) == 1
    options.enable_mem_pattern = _number(config, "enable_mem_pattern", 1) == 1
    optimization = config.raw.get("optimization") or {}
    level = (optimization.get("graph") or {}).get("level", 0)
    if level not in _GRAPH_LEVEL:
        raise load_error(
            f"optimization.graph.level: expected {listed([str(n) for n in _GRAPH_LEVEL])}, "
            f"got {level}"
        )
    options.graph_optimization_level = _GRAPH_LEVEL[level]
    for key, value in config.parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    for library in (config.raw.get("model_operations") or {}).get("op_library_filename", []):
        _register_operators(options, Path(instance.directory) / library)
    return options


def _register_operators(options: onnxruntime.SessionOptions, library: Path) -> None:
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:
        raise load_error(f"model_operations: {library}: {reason(error)}") from error


def _number(config: ModelConfig, key: str, default: int) -> int:
    text = config.parameters.get(key)
    if text is None:
        return default
    fault = BACKEND_PARAMETERS["onnxruntime"].known[key].fault(text)
    if fault:
        raise load_error(f'parameters["{key}"]: {fault}')
    return int(text)


def run_options(config: ModelConfig) -> onnxruntime.RunOptions | None:
    """Options of every run of the model; None where the defaults do."""
    if _ARENA_SHRINKAGE not in config.parameters:
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_ARENA_SHRINKAGE, config.parameters[_ARENA_SHRINKAGE])
    return options


def execution_providers(instance: ModelInstance) -> list[Provider]:
    """Providers in order of preference, the wanted one first."""
    config = instance.config
    on_gpu = instance.kind == "KIND_GPU"
    optimization = config.raw.get("optimization") or {}
    accelerators = optimization.get("execution_accelerators") or {}
    field = "gpu_execution_accelerator" if on_gpu else "cpu_execution_accelerator"
    given = {item["name"]: item.get("parameters") or {} for item in accelerators.get(field, [])}
    known = GPU_ACCELERATORS if on_gpu else ()
    unknown = [name for name in given if name not in known]
    if unknown:
        raise load_error(
            f"optimization.execution_accelerators.{field}: {listed(unknown)} is not in this "
            f"release (known: {listed(known)}); remove it to run the model without"
        )
    if not on_gpu:
        return [CPU]
    try:
        providers = gpu_providers(instance, given)
    except ValueError as fault:
        raise load_error(str(fault)) from fault
    available = onnxruntime.get_available_providers()
    missing = [name for name, _ in providers if name not in available]
    if missing:
        raise load_error(
            f"the model asks for {listed(missing)} (KIND_GPU, accelerators), and the installed "
            f"onnxruntime has only {listed(available)}; {_devices()}. Install onnxruntime-gpu "
            "instead of onnxruntime, or set kind: KIND_CPU"
        )
    return providers


def _devices() -> str:
    """Which GPUs this process could use, in words."""
    nodes = sorted(str(node) for node in Path("/dev").glob("nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}"
    return f"visible GPU devices: {listed(nodes)}{limited}"


def declared_inputs(session: onnxruntime.InferenceSession) -> list[DeclaredTensor]:
    """Inputs, then the initialisers that a request may override (they are optional)."""
    inputs = [_declared("input", node) for node in session.get_inputs()]
    defaults = [
        _declared("input", node, is_optional=True)
        for node in session.get_overridable_initializers()
        if _datatype(node.type) is not None
    ]
    return inputs + defaults


def declared_outputs(
    session: onnxruntime.InferenceSession, chosen: Iterable[str]
) -> list[DeclaredTensor]:
    """All outputs; one that is no tensor is refused unless `chosen` names others only.

    ONNX Runtime shows an output of unknown shape and a scalar alike: both have dims None here.
    """
    names = set(chosen)
    outputs = []
    for node in session.get_outputs():
        if names and node.name not in names:
            outputs.append(DeclaredTensor(node.name, "", None))
            continue
        tensor = _declared("output", node)
        outputs.append(tensor if tensor.dims else replace(tensor, dims=None))
    return outputs


def _declared(side: str, node: Any, *, is_optional: bool = False) -> DeclaredTensor:
    datatype = _datatype(node.type)
    if datatype is None:
        remedy = "list the other outputs in the config" if side == "output" else "export it without"
        raise load_error(
            f'{side} "{node.name}" of the model is {node.type}; expected a tensor of '
            f"{listed(sorted(ITEM_BYTES))}; {remedy}"
        )
    return DeclaredTensor(node.name, datatype, _dims(node.shape), is_optional)


def _datatype(onnx_type: str) -> str | None:
    found = _TYPE.fullmatch(onnx_type)
    return _DATATYPE.get(found[1]) if found else None


def _dims(shape: Sequence[object]) -> tuple[int, ...]:
    """Names, nothing, and numbers below 1 (some exporters write -1) all mean: any size."""
    return tuple(size if isinstance(size, int) and size > 0 else -1 for size in shape)


def reason(error: Exception) -> str:
    """What ONNX Runtime says, on one line, without its prefix and its build machine's paths."""
    text = " ".join(str(error).split())
    text = re.sub(r"^(Error in execution: |\[ONNXRuntimeError\] : \d+ : )+", "", text)
    return re.sub(r"/\S*?/(onnxruntime/\S+?:\d+)", r"\1", text)

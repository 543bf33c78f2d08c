"""optimization.execution_accelerators: which are heeded, refused, or without an effect. Pure.

Only ONNX models on GPUs have any; what these may say is accelerators'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from naiad.config.accelerators import (
    GPU_ACCELERATORS,
    accelerator_faults,
    accelerator_name_fault,
)
from naiad.config.faults import RELEASE, listed
from naiad.config.model import ModelConfig, messages

_ACCELERATED_KINDS: Final = {
    "gpu_execution_accelerator": "KIND_GPU",
    "cpu_execution_accelerator": "KIND_CPU",
}
"""Which instances an accelerator is for."""


def accelerator_refusals(config: ModelConfig) -> Iterator[str]:
    """An accelerator of a device that no instance is on, or of an engine, passes: see warnings."""
    for key, kind in _ACCELERATED_KINDS.items():
        if _no_use(config, kind):
            continue
        where = f"optimization.execution_accelerators.{key}"
        takes = (config.backend, kind) == ("onnxruntime", "KIND_GPU")
        for name, parameters in _accelerators_of(config, key):
            if not takes:
                yield (
                    f"{where} {name}: accelerators are {RELEASE}; remove them to run with the "
                    "backend's own execution"
                )
            elif name not in GPU_ACCELERATORS:
                yield f"{where}: {accelerator_name_fault(name)}"
            else:
                for fault in accelerator_faults(name, parameters):
                    yield f"optimization.execution_accelerators: {fault}"


def accelerator_warnings(config: ModelConfig) -> Iterator[str]:
    """Of a normalised config: accelerators without an effect, misspelt or not."""
    for key, kind in _ACCELERATED_KINDS.items():
        names = [name for name, _ in _accelerators_of(config, key)]
        why = _no_use(config, kind)
        if names and why:
            yield (
                f"optimization.execution_accelerators.{key} {listed(names)} has no effect: {why}"
            )


def _no_use(config: ModelConfig, kind: str) -> str:
    """Why accelerators for instances of this kind have no effect; empty when they would."""
    if config.backend == "tensorrt":
        return "the model is an engine, whose precision and memory were chosen when it was built"
    kinds = {group.kind for group in config.instance_groups}
    return "" if kind in kinds else f"no instance is {kind}"


def _accelerators_of(config: ModelConfig, key: str) -> list[tuple[str, Mapping[str, str]]]:
    """Names and parameters, in the order of the file."""
    optimization = config.raw.get("optimization") or {}
    accelerators: Mapping[str, Any] = optimization.get("execution_accelerators") or {}
    return [
        (item.get("name", ""), item.get("parameters") or {}) for item in messages(accelerators, key)
    ]

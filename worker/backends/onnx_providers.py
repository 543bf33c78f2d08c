"""What ONNX Runtime's providers for GPUs are told, by a config and for one instance. Pure.

The names of parameters, their values and their form are config.accelerators'; what an instance adds
is its GPU and its limit of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from naiad.config.accelerators import (
    CUDA,
    CUDA_OPTIONS,
    DEVICE,
    TENSORRT,
    Options,
    accelerator_faults,
    accelerator_options,
)
from naiad.config.backend_parameters import CUDA_PARAMETERS
from naiad.worker.backends.base import ModelInstance

Provider = tuple[str, Options]

CPU: Final[Provider] = ("CPUExecutionProvider", {})
CUDA_NAME: Final = "CUDAExecutionProvider"
TENSORRT_NAME: Final = "TensorrtExecutionProvider"
MIB: Final = 2**20


def gpu_providers(
    instance: ModelInstance, given: Mapping[str, Mapping[str, str]]
) -> list[Provider]:
    """In order of preference; `given` are the accelerators of the config with their parameters.

    What TensorRT cannot run is CUDA's, and the CPU's at last. Raises ValueError with the parameter.
    """
    parameters = instance.config.parameters
    wanted = {key: parameters[key] for key in CUDA_PARAMETERS if key in parameters}
    for key, text in wanted.items():
        if fault := CUDA_OPTIONS[key].fault(text):
            raise ValueError(f'parameters["{key}"]: {fault}')
    cuda = _options(instance, CUDA, {**wanted, **given.get(CUDA, {})})
    _limit(instance, cuda, "gpu_mem_limit")
    providers = [(CUDA_NAME, cuda), CPU]
    if TENSORRT in given:
        tensorrt = _options(instance, TENSORRT, given[TENSORRT])
        if "trt_max_workspace_size" in tensorrt:
            _limit(instance, tensorrt, "trt_max_workspace_size")
        providers.insert(0, (TENSORRT_NAME, tensorrt))
    return providers


def _options(instance: ModelInstance, accelerator: str, given: Mapping[str, str]) -> Options:
    faults = list(accelerator_faults(accelerator, given))
    if faults:
        raise ValueError("; ".join(faults))
    return {DEVICE: str(instance.device_id), **accelerator_options(given)}


def _limit(instance: ModelInstance, options: Options, key: str) -> None:
    """No more than naiad.gpu_memory_limit_mb."""
    limit = instance.config.naiad.gpu_memory_limit_mb * MIB
    if limit:
        options[key] = str(min(limit, int(options.get(key, limit))))

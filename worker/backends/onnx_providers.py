"""From a config to what ONNX Runtime's providers for GPUs are told, by name. Pure.

Triton's names of parameters become those of the providers; those that a provider has itself pass as
they are. A name that neither knows is an error: a misspelt one would silently have no effect on
some versions and fail on others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from naiad.config.faults import did_you_mean, listed
from naiad.worker.backends.base import ModelInstance

Options = dict[str, str]
Provider = tuple[str, Options]

CPU: Final[Provider] = ("CPUExecutionProvider", {})
CUDA_NAME: Final = "CUDAExecutionProvider"
TENSORRT_NAME: Final = "TensorrtExecutionProvider"
CUDA: Final = "cuda"
TENSORRT: Final = "tensorrt"
GPU_ACCELERATORS: Final = (TENSORRT, CUDA)
MIB: Final = 2**20

CUDA_OPTIONS: Final = frozenset(
    {
        "arena_extend_strategy", "cudnn_conv1d_pad_to_nc1d", "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace", "device_id",
        "do_copy_in_default_stream", "enable_cuda_graph", "enable_skip_layer_norm_strict_mode",
        "fuse_conv_bias", "gpu_mem_limit", "prefer_nhwc", "sdpa_kernel",
        "tunable_op_enable", "tunable_op_max_tuning_duration_ms", "tunable_op_tuning_enable",
        "use_ep_level_unified_stream", "use_tf32",
    }
)  # fmt: skip
"""Those that are numbers and words. Addresses (streams, allocators) have no place in a config."""
TENSORRT_OPTIONS: Final = frozenset(
    {
        "device_id", "trt_auxiliary_streams", "trt_bf16_enable", "trt_build_heuristics_enable",
        "trt_builder_optimization_level", "trt_context_memory_sharing_enable",
        "trt_cuda_graph_enable", "trt_detailed_build_log", "trt_dla_core", "trt_dla_enable",
        "trt_dump_ep_context_model", "trt_dump_subgraphs", "trt_engine_cache_enable",
        "trt_engine_cache_path", "trt_engine_cache_prefix", "trt_engine_decryption_enable",
        "trt_engine_decryption_lib_path", "trt_engine_hw_compatible", "trt_ep_context_embed_mode",
        "trt_ep_context_file_path", "trt_extra_plugin_lib_paths",
        "trt_force_sequential_engine_build", "trt_force_timing_cache", "trt_fp16_enable",
        "trt_int8_calibration_table_name",
        "trt_int8_enable", "trt_int8_use_native_calibration_table", "trt_layer_norm_fp32_fallback",
        "trt_max_partition_iterations", "trt_max_workspace_size", "trt_min_subgraph_size",
        "trt_op_types_to_exclude", "trt_profile_max_shapes", "trt_profile_min_shapes",
        "trt_profile_opt_shapes", "trt_sparsity_enable", "trt_tactic_sources",
        "trt_timing_cache_enable", "trt_timing_cache_path", "trt_weight_stripped_engine_enable",
    }
)  # fmt: skip
CHOICES: Final = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "do_copy_in_default_stream": ("0", "1"),
}
"""Triton counts the choices of these, ONNX Runtime names them."""
MODEL_PARAMETERS: Final = (*CHOICES, "gpu_mem_limit")
"""Options of the CUDA provider that may stand among the model's parameters, as with Triton."""
RENAMED: Final = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
PRECISIONS: Final[Mapping[str, Options]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_TRUTH: Final = {"true": "1", "false": "0"}


def gpu_providers(
    instance: ModelInstance, given: Mapping[str, Mapping[str, str]]
) -> list[Provider]:
    """In order of preference; `given` are the accelerators of the config with their parameters.

    What TensorRT cannot run is CUDA's, and the CPU's at last. Raises ValueError with the parameter.
    """
    providers = [(CUDA_NAME, _cuda(instance, given.get(CUDA, {}))), CPU]
    if TENSORRT in given:
        providers.insert(0, (TENSORRT_NAME, _tensorrt(instance, given[TENSORRT])))
    return providers


def _cuda(instance: ModelInstance, given: Mapping[str, str]) -> Options:
    parameters = instance.config.parameters
    wanted = {key: parameters[key] for key in MODEL_PARAMETERS if key in parameters}
    options = {key: _choice(key, text) for key, text in {**wanted, **given}.items()}
    _check_known(CUDA, options, CUDA_OPTIONS)
    _limit(instance, options, "gpu_mem_limit")
    return {"device_id": str(instance.device_id), **options}


def _tensorrt(instance: ModelInstance, given: Mapping[str, str]) -> Options:
    options: Options = {}
    for key, text in given.items():
        if key == "precision_mode":
            precision = PRECISIONS.get(text.upper())
            if precision is None:
                raise ValueError(
                    f'{_where(TENSORRT, key)}: expected {listed(list(PRECISIONS))}, got "{text}"'
                )
            options |= precision
        else:
            options[RENAMED.get(key, key)] = _TRUTH.get(text.lower(), text)
    _check_known(TENSORRT, options, TENSORRT_OPTIONS, (*RENAMED, "precision_mode"))
    if "trt_max_workspace_size" in options:
        _limit(instance, options, "trt_max_workspace_size")
    return {"device_id": str(instance.device_id), **options}


def _limit(instance: ModelInstance, options: Options, key: str) -> None:
    """No more than naiad.gpu_memory_limit_mb."""
    limit = instance.config.naiad.gpu_memory_limit_mb * MIB
    text = options.get(key, "")
    if text and not text.isdecimal():
        raise ValueError(f'{key}: expected a number of bytes, got "{text}"')
    if limit:
        options[key] = str(min(limit, int(text or limit)))


def _choice(key: str, text: str) -> str:
    choices = CHOICES.get(key)
    if choices is None or text in choices:
        return text
    if text.isdecimal() and int(text) < len(choices):
        return choices[int(text)]
    raise ValueError(f'parameters["{key}"]: expected 0 to {len(choices) - 1}, got "{text}"')


def _check_known(
    accelerator: str, options: Options, known: frozenset[str], more: tuple[str, ...] = ()
) -> None:
    for key in options:
        if key == "device_id":
            raise ValueError(
                f"{_where(accelerator, key)}: instance_group.gpus chooses the GPU; remove it"
            )
        if key not in known:
            names = sorted({*known, *more} - {"device_id"})
            hint = did_you_mean(key, names) or f"known are {', '.join(names)}"
            raise ValueError(f"{_where(accelerator, key)}: unknown parameter; {hint}")


def _where(accelerator: str, key: str) -> str:
    return f'gpu_execution_accelerator "{accelerator}", parameter "{key}"'

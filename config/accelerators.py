"""What an ONNX model's config may say to ONNX Runtime's providers for GPUs, and its form there.

Triton's names of parameters become those of the providers; those that a provider has itself pass as
they are. A name that neither knows is a fault: a misspelt one would silently have no effect on some
versions and fail on others. The names are those of ONNX Runtime's public documentation. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from naiad.config.accepts import BYTES, TEXT, WHOLE, Accepts
from naiad.config.faults import did_you_mean, listed

Options = dict[str, str]

CUDA: Final = "cuda"
TENSORRT: Final = "tensorrt"
GPU_ACCELERATORS: Final = (TENSORRT, CUDA)
DEVICE: Final = "device_id"

_TRUTH: Final = {"true": "1", "false": "0"}
_SWITCH: Final = Accepts(("0", "1", *_TRUTH), any_case=True)

CHOICES: Final = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
"""Triton counts the choices of these, ONNX Runtime names them."""


def _choice(key: str) -> Accepts:
    names = CHOICES[key]
    return Accepts((*names, *map(str, range(len(names)))))


CUDA_OPTIONS: Final[Mapping[str, Accepts]] = {
    **{key: _choice(key) for key in CHOICES},
    "cudnn_conv1d_pad_to_nc1d": _SWITCH,
    "cudnn_conv_use_max_workspace": _SWITCH,
    "do_copy_in_default_stream": _SWITCH,
    "enable_cuda_graph": _SWITCH,
    "enable_skip_layer_norm_strict_mode": _SWITCH,
    "fuse_conv_bias": _SWITCH,
    "gpu_mem_limit": BYTES,
    "prefer_nhwc": _SWITCH,
    "sdpa_kernel": WHOLE,
    "tunable_op_enable": _SWITCH,
    "tunable_op_max_tuning_duration_ms": WHOLE,
    "tunable_op_tuning_enable": _SWITCH,
    "use_ep_level_unified_stream": _SWITCH,
    "use_tf32": _SWITCH,
}
"""Those that are numbers and words. Addresses (streams, allocators) have no place in a config."""
TENSORRT_OPTIONS: Final[Mapping[str, Accepts]] = {
    "trt_auxiliary_streams": Accepts(least=-1),
    "trt_bf16_enable": _SWITCH,
    "trt_build_heuristics_enable": _SWITCH,
    "trt_builder_optimization_level": WHOLE,
    "trt_context_memory_sharing_enable": _SWITCH,
    "trt_cuda_graph_enable": _SWITCH,
    "trt_detailed_build_log": _SWITCH,
    "trt_dla_core": WHOLE,
    "trt_dla_enable": _SWITCH,
    "trt_dump_ep_context_model": _SWITCH,
    "trt_dump_subgraphs": _SWITCH,
    "trt_engine_cache_enable": _SWITCH,
    "trt_engine_cache_path": TEXT,
    "trt_engine_cache_prefix": TEXT,
    "trt_engine_decryption_enable": _SWITCH,
    "trt_engine_decryption_lib_path": TEXT,
    "trt_engine_hw_compatible": _SWITCH,
    "trt_ep_context_embed_mode": WHOLE,
    "trt_ep_context_file_path": TEXT,
    "trt_extra_plugin_lib_paths": TEXT,
    "trt_force_sequential_engine_build": _SWITCH,
    "trt_force_timing_cache": _SWITCH,
    "trt_fp16_enable": _SWITCH,
    "trt_int8_calibration_table_name": TEXT,
    "trt_int8_enable": _SWITCH,
    "trt_int8_use_native_calibration_table": _SWITCH,
    "trt_layer_norm_fp32_fallback": _SWITCH,
    "trt_max_partition_iterations": WHOLE,
    "trt_max_workspace_size": BYTES,
    "trt_min_subgraph_size": WHOLE,
    "trt_onnx_model_folder_path": TEXT,
    "trt_op_types_to_exclude": TEXT,
    "trt_preview_features": TEXT,
    "trt_profile_max_shapes": TEXT,
    "trt_profile_min_shapes": TEXT,
    "trt_profile_opt_shapes": TEXT,
    "trt_sparsity_enable": _SWITCH,
    "trt_tactic_sources": TEXT,
    "trt_timing_cache_enable": _SWITCH,
    "trt_timing_cache_path": TEXT,
    "trt_weight_stripped_engine_enable": _SWITCH,
}
RENAMED: Final = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
PRECISION: Final = "precision_mode"
PRECISIONS: Final[Mapping[str, Options]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
PARAMETERS: Final[Mapping[str, Mapping[str, Accepts]]] = {
    CUDA: CUDA_OPTIONS,
    TENSORRT: {
        **TENSORRT_OPTIONS,
        **{name: TENSORRT_OPTIONS[renamed] for name, renamed in RENAMED.items()},
        PRECISION: Accepts(tuple(PRECISIONS), any_case=True),
    },
}
"""What each accelerator of a config takes."""


def accelerator_faults(accelerator: str, given: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the parameters of one of GPU_ACCELERATORS, one sentence each."""
    known = PARAMETERS[accelerator]
    for key, text in sorted(given.items()):
        where = f'gpu_execution_accelerator "{accelerator}", parameter "{key}"'
        if key == DEVICE:
            yield f"{where}: instance_group.gpus chooses the GPU; remove it"
        elif key not in known:
            other = next((name for name in PARAMETERS if key in PARAMETERS[name]), "")
            hint = f'it is one of "{other}"' if other else did_you_mean(key, known)
            yield f"{where}: unknown parameter; {hint or 'known are ' + ', '.join(sorted(known))}"
        elif fault := known[key].fault(text):
            hint = known[key].hint(text)
            yield f"{where}: {fault}{'; ' if hint else ''}{hint}"


def accelerator_options(given: Mapping[str, str]) -> Options:
    """What a provider is told for parameters without a fault."""
    options: Options = {}
    for key, text in given.items():
        if key == PRECISION:
            options |= PRECISIONS[text.upper()]
        elif key in CHOICES:
            options[key] = CHOICES[key][int(text)] if text.isdecimal() else text
        else:
            options[RENAMED.get(key, key)] = _TRUTH.get(text.lower(), text)
    return options


def accelerator_name_fault(name: str) -> str:
    """Why a gpu_execution_accelerator of an ONNX model is none of those that are served."""
    hint = did_you_mean(name, GPU_ACCELERATORS) or f"known are {listed(GPU_ACCELERATORS)}"
    return f'"{name}" is not in this release; {hint}'

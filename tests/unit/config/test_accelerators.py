"""Accelerators of a config: names, parameters and values are judged before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.config.accelerators import (
    CHOICES,
    CUDA_OPTIONS,
    PRECISIONS,
    RENAMED,
    TENSORRT_OPTIONS,
    accelerator_faults,
    accelerator_options,
)
from naiad.config.execution_accelerators import accelerator_warnings
from naiad.config.model import ModelConfig
from naiad.config.normalise import normalise
from naiad.config.refusals import refusals
from naiad.config.surroundings import Surroundings

GPU = Surroundings(("onnxruntime", "tensorrt"), ("cpu", "gpu:a"))
CPU = Surroundings(("onnxruntime", "tensorrt"), ("cpu",))


def placed(
    name: str,
    given: dict[str, str] | None = None,
    *,
    surroundings: Surroundings = GPU,
    backend: str = "onnxruntime",
) -> ModelConfig:
    found = [{"name": name, "parameters": given or {}}]
    written: dict[str, Any] = {"execution_accelerators": {"gpu_execution_accelerator": found}}
    json = {"name": "m", "backend": backend, "optimization": written}
    return ModelConfig.from_json(normalise(json, surroundings))


def refused(model: ModelConfig) -> list[str]:
    return refusals(model, GPU.backends, GPU.devices)


@pytest.mark.parametrize(
    ("accelerator", "given", "fault"),
    [
        ("tensorrt", {"precision_mod": "FP16"}, 'unknown parameter; did you mean "precision_mode"'),
        ("tensorrt", {"precision_mode": "FP61"}, 'expected FP32, FP16, BF16, INT8, got "FP61"'),
        ("tensorrt", {"trt_fp16_enable": "yes"}, 'expected 0, 1, true, false, got "yes"'),
        ("tensorrt", {"max_workspace_size_bytes": "1g"}, "from 0 on (bytes)"),
        ("tensorrt", {"use_tf32": "1"}, 'unknown parameter; it is one of "cuda"'),
        ("cuda", {"arena_extend_strategy": "2"}, "kNextPowerOfTwo, kSameAsRequested, 0, 1, got"),
        ("cuda", {"device_id": "1"}, "instance_group.gpus chooses the GPU"),
    ],
)  # fmt: skip
def test_a_fault(accelerator: str, given: dict[str, str], fault: str) -> None:
    (found,) = accelerator_faults(accelerator, given)
    assert found.startswith(f'gpu_execution_accelerator "{accelerator}", parameter "')
    assert fault in found
    (sentence,) = refused(placed(accelerator, given))
    assert found in sentence


def test_all_faults_come_at_once_in_the_order_of_the_alphabet() -> None:
    found = list(accelerator_faults("cuda", {"use_tf32": "x", "fuse_conv_bias": "y"}))
    assert ["fuse_conv_bias" in found[0], "use_tf32" in found[1]] == [True, True]


def test_a_misspelt_accelerator() -> None:
    (sentence,) = refused(placed("tensort"))
    assert sentence.endswith('"tensort" is not in this release; did you mean "tensorrt"?')
    (sentence,) = refused(placed("migraphx"))
    assert sentence.endswith("known are tensorrt, cuda")


def test_what_has_no_effect_is_said_and_passes() -> None:
    idle = placed("tensort", surroundings=CPU)
    assert refused(idle) == []
    (said,) = accelerator_warnings(idle)
    assert said.endswith("tensort has no effect: no instance is KIND_GPU")
    engine = placed("tensorrt", {"gpu_memory_utilization": "0.85"}, backend="tensorrt")
    assert refused(engine) == []
    (said,) = accelerator_warnings(engine)
    assert "chosen when it was built" in said
    assert list(accelerator_warnings(placed("tensorrt"))) == []


def test_what_the_providers_are_told() -> None:
    given = {
        "precision_mode": "fp16", "max_workspace_size_bytes": "7", "trt_dla_enable": "True",
        "cudnn_conv_algo_search": "1", "arena_extend_strategy": "kSameAsRequested",
    }  # fmt: skip
    assert accelerator_options(given) == {
        "trt_fp16_enable": "1", "trt_max_workspace_size": "7", "trt_dla_enable": "1",
        "cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested",
    }  # fmt: skip


def test_every_choice_is_an_option() -> None:
    told = {key for options in PRECISIONS.values() for key in options}
    assert told | set(RENAMED.values()) <= set(TENSORRT_OPTIONS)
    assert set(CHOICES) <= set(CUDA_OPTIONS)

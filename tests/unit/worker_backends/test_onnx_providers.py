"""What ONNX Runtime's providers for GPUs are told: a session records it, and runs on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from naiad.protocol.errors import Code, ModelError
from naiad.worker.backends.onnxruntime import OnnxRuntimeBackend
from support.backend_requests import Served, instance
from support.onnx_models import write_echo

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
Providers = list[tuple[str, dict[str, str]]]


class Recorded:
    """What the sessions of this test were given. `starts`: providers that come up."""

    def __init__(self) -> None:
        self.providers: Providers = []
        self.starts = {CUDA, TENSORRT}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    record = Recorded()

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: str, options: Any, providers: Providers) -> None:
            record.providers = providers
            super().__init__(path, options, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return [name for name, _ in record.providers if name in record.starts]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    available = [TENSORRT, CUDA, "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    return record


def accelerated(*given: tuple[str, dict[str, str]], **parameters: str) -> dict[str, Any]:
    found = [{"name": name, "parameters": options} for name, options in given]
    return {
        "optimization": {"execution_accelerators": {"gpu_execution_accelerator": found}},
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


def load(directory: Path, config: dict[str, Any]) -> Served:
    write_echo(directory, "FP32", ["n", 2])
    return Served(OnnxRuntimeBackend(), instance(directory, config, kind="KIND_GPU"))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (accelerated(), [(CUDA, {})]),
        (accelerated(("cuda", {"use_tf32": "0"})), [(CUDA, {"use_tf32": "0"})]),
        (accelerated(("tensorrt", {})), [(TENSORRT, {}), (CUDA, {})]),
        (
            accelerated(("tensorrt", {"precision_mode": "fp16"}), gpu_mem_limit="100"),
            [(TENSORRT, {"trt_fp16_enable": "1"}), (CUDA, {"gpu_mem_limit": "100"})],
        ),
        (
            accelerated(
                (
                    "tensorrt",
                    {
                        "precision_mode": "INT8",
                        "max_workspace_size_bytes": "1000",
                        "int8_use_native_calibration_table": "true",
                        "int8_calibration_table_name": "table",
                        "trt_engine_cache_enable": "False",
                        "trt_profile_min_shapes": "x:1x2",
                    },
                ),
                ("cuda", {"cudnn_conv_algo_search": "1"}),
            ),
            [
                (
                    TENSORRT,
                    {
                        "trt_int8_enable": "1",
                        "trt_max_workspace_size": "1000",
                        "trt_int8_use_native_calibration_table": "1",
                        "trt_int8_calibration_table_name": "table",
                        "trt_engine_cache_enable": "0",
                        "trt_profile_min_shapes": "x:1x2",
                    },
                ),
                (CUDA, {"cudnn_conv_algo_search": "HEURISTIC"}),
            ],
        ),
        (
            accelerated(("cuda", {"arena_extend_strategy": "1"}), arena_extend_strategy="0"),
            [(CUDA, {"arena_extend_strategy": "kSameAsRequested"})],
        ),
    ],
)
def test_providers_are_told_what_the_config_says(
    tmp_path: Path, recorded: Recorded, config: dict[str, Any], expected: Providers
) -> None:
    served = load(tmp_path / "m", config)
    wanted = [(name, {"device_id": "0", **options}) for name, options in expected]
    assert recorded.providers == [*wanted, ("CPUExecutionProvider", {})]
    array = np.ones((1, 2), np.float32)
    assert served.ask({"INPUT0": array})["OUTPUT0"].tolist() == array.tolist()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, 64 * 2**20),
        ({"gpu_mem_limit": "1000"}, 1000),
        ({"gpu_mem_limit": "9" * 12}, 64 * 2**20),
    ],
)
def test_the_limit_of_the_instance_is_the_arena_s(
    tmp_path: Path, recorded: Recorded, given: dict[str, str], told: int
) -> None:
    workspace = ("tensorrt", {"max_workspace_size_bytes": "9" * 12})
    config = accelerated(workspace, ("cuda", given), **{"naiad.gpu_memory_limit_mb": "64"})
    load(tmp_path / "m", config)
    (_, tensorrt), (_, cuda), _ = recorded.providers
    assert cuda["gpu_mem_limit"] == str(told)
    assert tensorrt["trt_max_workspace_size"] == str(64 * 2**20)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (accelerated(("migraphx", {})), "migraphx is not in this release (known: tensorrt, cuda)"),
        (
            accelerated(("tensorrt", {"precision_mode": "FP8"})),
            'parameter "precision_mode": expected FP32, FP16, BF16, INT8, got "FP8"',
        ),
        (
            accelerated(("tensorrt", {"trt_engine_cache_enabled": "1"})),
            'unknown parameter; did you mean "trt_engine_cache_enable"?',
        ),
        (accelerated(("cuda", {"speed": "1"})), "unknown parameter; known are arena_extend"),
        (accelerated(("cuda", {"device_id": "1"})), "instance_group.gpus chooses the GPU"),
        (
            accelerated(cudnn_conv_algo_search="3"),
            'parameters["cudnn_conv_algo_search"]: expected EXHAUSTIVE, HEURISTIC, DEFAULT, 0, 1, '
            '2, got "3"',
        ),
        (
            accelerated(("cuda", {"use_tf32": "maybe"})),
            'parameter "use_tf32": expected 0, 1, true, false, got "maybe"',
        ),
        (
            accelerated(gpu_mem_limit="much"),
            'parameters["gpu_mem_limit"]: expected a whole number from 0 on (bytes), got "much"',
        ),
    ],
)
def test_a_faulty_accelerator_is_a_load_error_that_names_it(
    tmp_path: Path, recorded: Recorded, config: dict[str, Any], text: str
) -> None:
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m", config)
    assert caught.value.code == Code.LOAD_FAILED
    assert text in caught.value.message
    assert recorded.providers == []


def test_a_provider_that_does_not_start_is_a_load_error(tmp_path: Path, recorded: Recorded) -> None:
    recorded.starts = {CUDA}
    with pytest.raises(ModelError, match=f"could not start {TENSORRT}"):
        load(tmp_path / "m", accelerated(("tensorrt", {})))


def test_a_provider_that_is_not_installed_is_a_load_error(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = [CUDA, "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    with pytest.raises(ModelError, match=f"asks for {TENSORRT} .* has only {CUDA}"):
        load(tmp_path / "m", accelerated(("tensorrt", {})))

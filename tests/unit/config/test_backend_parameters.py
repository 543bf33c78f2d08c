"""Parameters of naiad's own backends: wrong values are refused, misspelt names never silent."""

from __future__ import annotations

import pytest

from naiad.config.accelerators import CUDA_OPTIONS
from naiad.config.backend_parameters import (
    BACKEND_PARAMETERS,
    CUDA_PARAMETERS,
    parameter_faults,
    parameter_warnings,
)
from naiad.config.model import ModelConfig
from naiad.worker.backends.identity import _TROUBLE
from naiad.worker.backends.python import FORCE_CPU_ONLY_INPUTS, READ_ONLY_INPUTS
from naiad.worker.backends.tensorrt.backend import STRATEGIES, STRATEGY_PARAMETER
from naiad.worker.backends.tensorrt.runtime import (
    MODULE_PARAMETER,
    PLUGINS_PARAMETER,
    VERSION_COMPATIBLE_PARAMETER,
)


def config(backend: str, parameters: dict[str, str]) -> ModelConfig:
    written = {key: {"string_value": value} for key, value in parameters.items()}
    return ModelConfig.from_json({"name": "m", "backend": backend, "parameters": written})


def faults(backend: str, **parameters: str) -> list[str]:
    return [str(fault) for fault in parameter_faults(config(backend, parameters))]


def warnings(backend: str, **parameters: str) -> list[str]:
    return parameter_warnings(config(backend, parameters))


@pytest.mark.parametrize(
    ("backend", "name", "value", "expected"),
    [
        ("tensorrt", "tensorrt_module", "tensorrt_rt", 'did you mean "tensorrt_rtx"?'),
        ("tensorrt", "version-compatible", "1", "expected true, false, got"),
        ("tensorrt", STRATEGY_PARAMETER, "LAZY", "expected STATIC, ON_PROFILE_CHANGE, got"),
        ("onnxruntime", "execution_mode", "2", "expected a whole number from 0 to 1, got"),
        ("onnxruntime", "intra_op_thread_count", "4097", "from 0 to 4096, got"),
        ("onnxruntime", "gpu_mem_limit", "2GB", "expected a whole number from 0 on (bytes), got"),
        ("onnxruntime", "cudnn_conv_algo_search", "FAST", "expected EXHAUSTIVE, HEURISTIC"),
        ("python", FORCE_CPU_ONLY_INPUTS, "true", "expected yes, no, got"),
        ("identity", "output_fault", "names", 'did you mean "name"?'),
        ("identity", "sleep_ms", "long", "expected a whole number"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_those_that_are_right(
    backend: str, name: str, value: str, expected: str
) -> None:
    (fault,) = faults(backend, **{name: value})
    assert fault.startswith(f'parameters["{name}"]: ')
    assert f'got "{value}"' in fault
    assert expected in fault


@pytest.mark.parametrize(
    ("backend", "name", "value", "meant"),
    [
        ("tensorrt", "tensorrt_modul", "tensorrt_lean", "tensorrt_module"),
        ("tensorrt", "plugin", "a.so;b.so", "plugins"),
        ("tensorrt", "version_compatible", "true", "version-compatible"),
        ("tensorrt", "allocation_strategy", "ON_PROFILE_CHANGE", STRATEGY_PARAMETER),
        ("tensorrt", "naiad_retry", "false", "naiad.retry"),
        ("onnxruntime", "Execution_Mode", "1", "execution_mode"),
        ("onnxruntime", "cudnn_conv_algo", "HEURISTIC", "cudnn_conv_algo_search"),
    ],
)
def test_a_misspelt_name_that_can_mean_nothing_else_is_refused(
    backend: str, name: str, value: str, meant: str
) -> None:
    given = {name: value}
    assert faults(backend, **given) == [
        f'parameters["{name}"]: unknown to backend "{backend}"; did you mean "{meant}"?'
    ]
    assert warnings(backend, **given) == []


@pytest.mark.parametrize(
    ("backend", "name", "value", "meant"),
    [
        ("tensorrt", "plugin", "${plugins}", "plugins"),
        ("tensorrt", "max_queue_size", "8", "naiad.max_queue_size"),
        ("onnxruntime", "executon_mode", "1", "execution_mode"),
        ("onnxruntime", "intra_op_threads", "2", "intra_op_thread_count"),
        ("identity", "sleep", "2", "sleep_ms"),
        ("python", "FORCE_CPU_ONLY_INPUT_TENSOR", "no", FORCE_CPU_ONLY_INPUTS),
        ("python", "execution_env_path", "/e", "EXECUTION_ENV_PATH"),
        ("python", "naiad_retry", "false", "naiad.retry"),
        ("somebody-elses", "naiad-retry", "false", "naiad.retry"),
    ],
)
def test_a_near_miss_is_named(backend: str, name: str, value: str, meant: str) -> None:
    given = {name: value}
    assert faults(backend, **given) == []
    assert warnings(backend, **given) == [
        f'parameters["{name}"] is no parameter that backend "{backend}" knows; '
        f'did you mean "{meant}"?'
    ]


def test_what_triton_knows_and_what_nobody_does() -> None:
    first, second = warnings("tensorrt", enable_multi_device="1", owner="me", team="us")
    assert first == 'parameters["enable_multi_device"] has no effect: an instance has one GPU'
    assert "does not know 'owner', 'team'; it knows execution_context_allocation" in second


def test_an_accelerators_parameter_in_the_wrong_place() -> None:
    (said,) = warnings("onnxruntime", precision_mode="FP16")
    assert 'among the parameters of a gpu_execution_accelerator "tensorrt"' in said
    (said,) = warnings("onnxruntime", use_tf32="1")
    assert 'gpu_execution_accelerator "cuda"' in said


@pytest.mark.parametrize(
    ("backend", "parameters"),
    [
        ("python", {"mine": "1", "gpu_mem_limit": "lots", "EXECUTION_ENV_PATH": "x"}),
        ("dali", {"plugin": "a.so", "execution_mode": "9"}),
        ("onnxruntime", {"session.intra_op.allow_spinning": "0", "naiad.retry": "1"}),
        ("tensorrt", {"plugins": "a.so", "tensorrt_module": "tensorrt", "": "x"}),
    ],
)
def test_what_is_left_alone(backend: str, parameters: dict[str, str]) -> None:
    assert faults(backend, **parameters) == warnings(backend, **parameters) == []


def test_the_backends_read_these_names() -> None:
    read = {STRATEGY_PARAMETER, MODULE_PARAMETER, PLUGINS_PARAMETER, VERSION_COMPATIBLE_PARAMETER}
    assert set(BACKEND_PARAMETERS["tensorrt"].known) == read
    assert BACKEND_PARAMETERS["tensorrt"].known[STRATEGY_PARAMETER].words == tuple(STRATEGIES)
    assert set(BACKEND_PARAMETERS["python"].known) == {FORCE_CPU_ONLY_INPUTS, READ_ONLY_INPUTS}
    assert set(BACKEND_PARAMETERS["identity"].known) == {*_TROUBLE, "load_ms", "fail_load"}
    assert set(CUDA_PARAMETERS) <= set(CUDA_OPTIONS)

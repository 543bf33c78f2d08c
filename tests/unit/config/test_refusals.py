"""What this release does not serve is refused by name; what only costs speed passes."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.config.model import ModelConfig
from naiad.config.normalise import normalise
from naiad.config.refusals import refusals, warnings

BACKENDS = ("identity", "onnxruntime", "python")
CPU = ("cpu",)
GPU = ("cpu", "gpu:abc")


def refused(
    changes: dict[str, Any],
    backends: tuple[str, ...] | None = BACKENDS,
    devices: tuple[str, ...] = CPU,
) -> list[str]:
    json = normalise({"name": "m", "backend": "python", **changes})
    return refusals(ModelConfig.from_json(json), backends, devices)


def tensor(side: str, **fields: Any) -> dict[str, Any]:
    return {side: [{"name": "a", "data_type": "TYPE_FP32", "dims": [1], **fields}]}


def group(**fields: Any) -> dict[str, Any]:
    return {"instance_group": [{"kind": "KIND_CPU", **fields}]}


def parameter(name: str) -> dict[str, Any]:
    return {"parameters": {name: {"string_value": "x"}}}


def accelerators(key: str, name: str = "tensorrt") -> dict[str, Any]:
    return {"optimization": {"execution_accelerators": {key: [{"name": name}]}}}


ENSEMBLE = {"platform": "ensemble", "backend": "", "ensemble_scheduling": {"step": []}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ensemble": (ENSEMBLE, "ensembles are not in this release"),
    "sequence": ({"sequence_batching": {}}, "sequence_batching: stateful models"),
    "decoupled": ({"model_transaction_policy": {"decoupled": True}}, "decoupled: several"),
    "cache": ({"response_cache": {"enable": True}}, "response_cache: caching"),
    "warm-up": ({"model_warmup": [{"name": "w"}]}, "model_warmup: "),
    "batch_input": ({"batch_input": [{}]}, "batch_input: ragged"),
    "batch_output": ({"batch_output": [{}]}, "batch_output: ragged"),
    "ragged": (tensor("input", allow_ragged_batch=True), "input[0].allow_ragged_batch: ragged"),
    "shape tensor": (tensor("output", is_shape_tensor=True), "output[0].is_shape_tensor"),
    "non-linear": (tensor("input", is_non_linear_format_io=True), "input[0].is_non_linear"),
    "passive": (group(passive=True), "instance_group[0].passive"),
    "nvdla": (group(secondary_devices=[{}]), "instance_group[0].secondary_devices"),
    "rate limit": (group(rate_limiter={"resources": [{}]}), "instance_group[0].rate_limiter"),
    "host policy": (group(host_policy="numa0"), 'host_policy "numa0"'),
    "accelerator": (accelerators("cpu_execution_accelerator"), "accelerator tensorrt"),
    "environment": (parameter("EXECUTION_ENV_PATH"), "EXECUTION_ENV_PATH"),
    "strategy": (parameter("TRITON_BATCH_STRATEGY_PATH"), "TRITON_BATCH_STRATEGY_PATH"),
    "agents": ({"model_repository_agents": {"agents": [{"name": "md5"}]}}, "agents md5"),
    "operations": ({"model_operations": {"op_library_filename": ["x.so"]}}, "x.so"),
}


def test_shape_tensors_are_for_engines() -> None:
    changes = {"backend": "tensorrt", **tensor("input", is_shape_tensor=True)}
    backends = ("identity", "tensorrt")
    assert refused({**changes, "max_batch_size": 0}, backends=backends, devices=GPU) == []
    (sentence,) = refused({**changes, "max_batch_size": 4}, backends=backends, devices=GPU)
    assert "input: all are shape tensors, and one of the others must tell" in sentence
    changes["input"].append({"name": "x", "data_type": "TYPE_FP32", "dims": [4]})
    assert refused({**changes, "max_batch_size": 4}, backends=backends, devices=GPU) == []
    for dims, more in (([2, 2], {}), ([2], {"reshape": {"shape": [2, 1]}})):
        changes["input"][0].update(dims=dims, **more)
        (sentence,) = refused({**changes, "max_batch_size": 4}, backends=backends, devices=GPU)
        assert "input[0].is_shape_tensor: expected one dim and no reshape" in sentence


@pytest.mark.parametrize(("changes", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(changes: dict[str, Any], text: str) -> None:
    (sentence,) = refused(changes)

    assert text in sentence
    assert "not in this release" in sentence


def test_each_part_of_sequence_batching_has_its_own_sentence() -> None:
    batching = {"state": [{}], "iterative_sequence": True}

    assert len(refused({"sequence_batching": batching})) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dynamic_batching": {"preserve_ordering": True}},
        {"response_cache": {"enable": False}},
        {"model_transaction_policy": {"decoupled": False}},
        {"optimization": {"priority": "PRIORITY_MAX", "eager_batching": True}},
        {"optimization": {"cuda": {"graphs": True}}},
        {"metric_tags": {"a": "b"}, "runtime": "x.so", "model_operations": {}},
        {"model_metrics": {"metric_control": [{}]}},
        accelerators("gpu_execution_accelerator"),
        group(host_policy="cpu", rate_limiter={"priority": 2}),
        group(kind="KIND_MODEL"),
        parameter("FORCE_CPU_ONLY_INPUT_TENSORS"),
    ],
)
def test_hints_on_speed_pass(changes: dict[str, Any]) -> None:
    assert refused(changes) == []


@pytest.mark.parametrize(
    ("backend", "texts"),
    [
        ("tensorflow", ["not in any planned release", "tf2onnx", "model.py"]),
        ("pytorch", ["not in this release", "torch.onnx.export", "model.py"]),
        ("tensorrt", ["not installed; it needs an NVIDIA GPU (visible devices: cpu)", "ONNX"]),
        ("openvino", ["not in this release"]),
        ("dali", ['"dali" is not installed', "identity, onnxruntime, python", "naiad.backends"]),
        ("onnxruntim", ['did you mean "onnxruntime"?']),
    ],
)
def test_a_backend_that_is_not_there(backend: str, texts: list[str]) -> None:
    (sentence,) = refused({"backend": backend, **group()})

    assert all(text in sentence for text in texts)


def test_onnxruntime_not_installed_names_the_extra() -> None:
    (sentence,) = refused({"backend": "onnxruntime"}, backends=("identity",))

    assert 'pip install "naiad[onnx]"' in sentence


def test_a_backend_that_somebody_brought_is_served() -> None:
    assert refused({"backend": "pytorch"}, backends=("pytorch",)) == []


def test_while_backends_are_unknown_only_those_certainly_absent_are_refused() -> None:
    assert refused({"backend": "mine"}, backends=None) == []
    assert "tf2onnx" in refused({"backend": "tensorflow"}, backends=None)[0]


def test_tensorrt_without_gpu_is_one_sentence_that_names_the_devices() -> None:
    gpu = {"backend": "tensorrt", **group(kind="KIND_GPU")}

    for backends in (("identity",), ("identity", "tensorrt")):
        (sentence,) = refused(gpu, backends=backends)
        assert "visible devices: cpu" in sentence
        assert "--on-missing-gpu" not in sentence
    assert "if `nvidia-smi -L` lists one here, look at --gpus and CUDA_VISIBLE_DEVICES" in sentence
    assert refused(gpu, backends=("tensorrt",), devices=GPU) == []


def test_a_gpu_group_without_gpu_says_which_devices_there_are() -> None:
    (sentence,) = refused(group(name="g", kind="KIND_GPU"))

    assert sentence.startswith('instance_group[0] "g": KIND_GPU, but no GPU is visible')
    assert "visible devices: cpu" in sentence
    assert "a container needs `docker run --gpus all`" in sentence
    assert "--on-missing-gpu=cpu" in sentence


def test_a_gpu_that_is_not_there_lists_the_valid_ones() -> None:
    (sentence,) = refused(group(name="g", kind="KIND_GPU", gpus=[0, 3]), devices=GPU)

    assert sentence == 'instance_group[0] "g": no GPU 3; valid ids are 0 (gpu:abc)'
    assert refused(group(kind="KIND_GPU"), devices=GPU) == []


def test_an_accelerator_counts_where_an_instance_is_on_its_device() -> None:
    changes = {**accelerators("gpu_execution_accelerator"), **group(kind="KIND_GPU")}

    assert "gpu_execution_accelerator tensorrt" in refused(changes, devices=GPU)[0]


def test_a_limit_of_gpu_memory_is_for_instances_that_have_one_gpu() -> None:
    limit = {"parameters": {"naiad.gpu_memory_limit_mb": {"string_value": "64"}}}
    (sentence,) = refused({**limit, **group(kind="KIND_MODEL")})
    assert "nothing holds it to naiad.gpu_memory_limit_mb" in sentence
    for kind in ("KIND_CPU", "KIND_GPU"):
        assert refused({**limit, **group(kind=kind)}, devices=GPU) == []


def test_accelerators_of_onnxruntime_on_gpus_are_served() -> None:
    gpu = {"backend": "onnxruntime", **group(kind="KIND_GPU")}
    backends = ("onnxruntime",)
    for name in ("tensorrt", "cuda"):
        changes = accelerators("gpu_execution_accelerator", name)
        assert refused({**changes, **gpu}, backends=backends, devices=GPU) == []
    other = accelerators("gpu_execution_accelerator", "migraphx")
    assert "migraphx" in refused({**other, **gpu}, backends=backends, devices=GPU)[0]


def test_what_has_no_effect_is_a_warning() -> None:
    config = ModelConfig.from_json(
        {
            "runtime": "../x.so",
            "model_metrics": {},
            "parameters": {"": {"string_value": ""}, "k": {"string_value": "${x}"}},
        }
    )

    runtime, empty, template = warnings(config)
    assert '"../x.so" is ignored' in runtime
    assert "empty key" in empty
    assert template.endswith(": k")


def test_answers_in_order_are_promised_by_one_instance_only() -> None:
    ordered = {"max_batch_size": 8, "dynamic_batching": {"preserve_ordering": True}}

    assert refused({**ordered, **group(kind="KIND_CPU", count=1)}) == []
    (sentence,) = refused({**ordered, **group(kind="KIND_CPU", count=2)})
    assert "preserve_ordering with 2 instances" in sentence

"""Every rule of validation: the field's path, and a word of what is said."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.config.model import ModelConfig
from naiad.config.validate import validate

GOOD: dict[str, Any] = {
    "name": "m",
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [3, -1]}],
    "output": [{"name": "b", "data_type": "TYPE_STRING", "dims": [1], "reshape": {"shape": []}}],
    "dynamic_batching": {"preferred_batch_size": [4, 8], "preserve_ordering": True},
    "instance_group": [{"kind": "KIND_GPU", "gpus": [0], "count": 1}],
    "version_policy": {"latest": {"num_versions": 1}},
}


NO_BATCHING: dict[str, Any] = {"dynamic_batching": None}
"""None here takes a field out."""


def faults_of(changes: dict[str, Any], *, is_complete: bool = False) -> list[tuple[str, str]]:
    json = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    config = ModelConfig.from_json(json)
    return [(fault.where, str(fault)) for fault in validate(config, is_complete=is_complete)]


def tensor(**fields: Any) -> dict[str, Any]:
    return {"input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [3], **fields}]}


def batching(**fields: Any) -> dict[str, Any]:
    return {"dynamic_batching": fields}


def group(**fields: Any) -> dict[str, Any]:
    return {"instance_group": [{"kind": "KIND_CPU", "count": 1, **fields}]}


def step(name: str) -> dict[str, Any]:
    return {
        "platform": "ensemble",
        "backend": "",
        **NO_BATCHING,
        "ensemble_scheduling": {"step": [{"model_name": "fine"}, {"model_name": name}]},
    }


def metric(**fields: Any) -> dict[str, Any]:
    return {"model_metrics": {"metric_control": [fields]}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        tensor(dims=[-1, 4], reshape={"shape": [-1, 2, 2]}),
        tensor(dims=[4, -1, 3], reshape={"shape": [2, 2, -1, 3, 1]}),
        tensor(format="FORMAT_NCHW", dims=[3, 224, 224]),
        tensor(dims=[], data_type="TYPE_INVALID"),
        batching(priority_levels=3, default_priority_level=3, priority_queue_policy={"1": {}}),
        batching(priority_queue_policy={"0": {}}),
        {"platform": "onnxruntime_onnx", "backend": "onnxruntime"},
        {"backend": "tensorrt", **group(kind="KIND_GPU", profile=["0", "12"])},
        metric(metric_identifier={"family": "f"}, histogram_options={"buckets": [1.0]}),
    ],
)
def test_sound_configs(changes: dict[str, Any]) -> None:
    assert faults_of(changes) == []


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "empty name": ({"name": ""}, "name", "cannot be empty"),
    "path name": ({"name": "../x"}, "name", "path traversal"),
    "pair": ({"platform": "tensorrt_plan"}, "backend", 'goes with backend "tensorrt"'),
    "negative batch": (
        {"max_batch_size": -1, **NO_BATCHING},
        "max_batch_size",
        "expected 0 or more, got -1",
    ),
    "model file": ({"default_model_filename": "../m"}, "default_model_filename", 'contains ".."'),
    "cc file": ({"cc_model_filenames": {"8.0": "/m"}}, 'cc_model_filenames["8.0"]', "absolute"),
    "no versions": (
        {"version_policy": {"specific": {}}},
        "version_policy.specific.versions",
        "no version listed",
    ),
    "nameless": (tensor(name=""), "input[0].name", "must have a name"),
    "zero dim": (tensor(dims=[3, 0]), "input[0].dims[1]", "got 0"),
    "dim -2": (tensor(dims=[-2]), "input[0].dims[0]", "or -1 for any size, got -2"),
    "format": (tensor(format="FORMAT_NHWC"), "input[0].dims", "needs exactly 3 dims, got [3]"),
    "non-linear": (tensor(is_non_linear_format_io=True), "input[0].dims", "exactly 3 dims"),
    "reshape count": (tensor(reshape={"shape": [2]}), "input[0].reshape", "element counts"),
    "reshape zero": (tensor(reshape={"shape": [0]}), "input[0].reshape.shape[0]", "got 0"),
    "reshape -1": (tensor(reshape={"shape": [-1]}), "input[0].reshape", "element counts"),
    "reshape moved": (
        tensor(dims=[-1, 4], reshape={"shape": [4, -1]}),
        "input[0].reshape",
        "equal products between",
    ),
    "label path": (
        {"output": [{"name": "b", "label_filename": "../l"}]},
        "output[0].label_filename",
        'contains ".."',
    ),
    "preferred": (
        batching(preferred_batch_size=[8, 9]),
        "dynamic_batching.preferred_batch_size[1]",
        "expected 1 to max_batch_size (8), got 9",
    ),
    "preferred zero": (
        batching(preferred_batch_size=[0]),
        "dynamic_batching.preferred_batch_size[0]",
        "got 0",
    ),
    "default level": (
        batching(priority_levels=3),
        "dynamic_batching.default_priority_level",
        "write default_priority_level: 2",
    ),
    "policy level": (
        batching(
            priority_levels=2, default_priority_level=1, priority_queue_policy={"3": {}, "2": {}}
        ),
        "dynamic_batching.priority_queue_policy[3]",
        "1 to priority_levels (2)",
    ),
    "ordering, priorities": (
        batching(preserve_ordering=True, priority_levels=2, default_priority_level=1),
        "dynamic_batching.preserve_ordering",
        "priority_levels 2",
    ),
    "ordering, delay": (
        batching(
            preserve_ordering=True,
            default_queue_policy={"timeout_action": "DELAY", "default_timeout_microseconds": 1},
        ),
        "dynamic_batching.preserve_ordering",
        "DELAY",
    ),
    "cache, decoupled": (
        {"response_cache": {"enable": True}, "model_transaction_policy": {"decoupled": True}},
        "response_cache",
        "decoupled",
    ),
    "a step outside the repository": (
        step("../secret"),
        "ensemble_scheduling.step[1].model_name",
        "path traversal",
    ),
    "a step without a name": (
        step(""),
        "ensemble_scheduling.step[1].model_name",
        "cannot be empty",
    ),
    "no steps": (
        {"platform": "ensemble", "backend": ""},
        "ensemble_scheduling",
        "an ensemble without steps",
    ),
    "ensemble backend": (
        {**step("x"), "backend": "python"},
        "backend",
        "an ensemble has no backend",
    ),
    "gpus on cpu": (group(gpus=[0]), "instance_group[0].gpus", "KIND_CPU cannot list gpus"),
    "negative gpu": (
        group(kind="KIND_GPU", gpus=[-1]),
        "instance_group[0].gpus",
        "expected GPU numbers from 0",
    ),
    "negative count": (group(count=-1), "instance_group[0].count", "got -1"),
    "profile": (group(profile=["0"]), "instance_group[0].profile", "for TensorRT only"),
    "trt on cpu": ({"backend": "tensorrt", **group()}, "instance_group[0].kind", "GPUs only"),
    "trt anywhere": (
        {"backend": "tensorrt", **group(kind="KIND_MODEL")},
        "instance_group[0].kind",
        "expected KIND_GPU, or KIND_AUTO, got KIND_MODEL",
    ),
    "parameter": (
        {"parameters": {"naiad.retry": {"string_value": "x"}}},
        'parameters["naiad.retry"]',
        '"true" or "false"',
    ),
    "metric family": (
        metric(histogram_options={"buckets": [1.0]}),
        "model_metrics.metric_control[0].metric_identifier.family",
        "is empty",
    ),
    "metric buckets": (
        metric(metric_identifier={"family": "f"}),
        "model_metrics.metric_control[0].histogram_options.buckets",
        "is empty",
    ),
}


@pytest.mark.parametrize(("changes", "where", "text"), CASES.values(), ids=CASES.keys())
def test_fault(changes: dict[str, Any], where: str, text: str) -> None:
    ((found, sentence),) = faults_of(changes)

    assert found == where
    assert text in sentence


def test_profiles_must_be_numbers() -> None:
    ((where, text),) = faults_of({"backend": "tensorrt", **group(kind="KIND_GPU", profile=["x"])})

    assert where == "instance_group[0].profile[0]"
    assert 'write profile: "0"' in text


def test_an_empty_reshape_needs_a_batch_dimension() -> None:
    changes = {"max_batch_size": 0, **NO_BATCHING}

    assert [where for where, _ in faults_of(changes)] == ["output[0].reshape"]


def test_two_schedulers_exclude_each_other() -> None:
    (fault,) = faults_of({"sequence_batching": {}})

    assert fault[1] == "sequence_batching: dynamic_batching is set as well; keep one of them"


def test_two_tensors_of_one_name() -> None:
    one = {"name": "a", "data_type": "TYPE_FP32", "dims": [1]}

    assert [where for where, _ in faults_of({"input": [one, one]})] == ["input[1].name"]


def test_a_complete_config_has_types_and_dims() -> None:
    changes = {"input": [{"name": "a"}]}

    assert faults_of(changes) == []
    assert [where for where, _ in faults_of(changes, is_complete=True)] == [
        "input[0].data_type",
        "input[0].dims",
    ]


def test_all_faults_come_at_once_in_the_order_of_the_file() -> None:
    changes = {"max_batch_size": -1, **tensor(dims=[0]), **group(count=-1), **NO_BATCHING}

    assert [where for where, _ in faults_of({**changes, "output": []})] == [
        "max_batch_size",
        "input[0].dims[0]",
        "instance_group[0].count",
    ]

"""The typed view of a JSON config."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.config.model import ModelConfig, VersionPolicy
from naiad.protocol.errors import RequestError

JSON: dict[str, Any] = {
    "name": "m",
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "input": [
        {"name": "a", "data_type": "TYPE_FP32", "dims": [3, -1], "optional": True},
        {"name": "b", "data_type": "TYPE_STRING", "dims": [1], "reshape": {"shape": []}},
    ],
    "output": [{"name": "c", "dims": [], "label_filename": "l.txt"}],
    "dynamic_batching": {
        "preferred_batch_size": [4, 8],
        "max_queue_delay_microseconds": 100,
        "priority_levels": 2**64 - 1,
        "default_priority_level": 2,
        "default_queue_policy": {"max_queue_size": 7},
        "priority_queue_policy": {"4294967296": {"timeout_action": "DELAY"}},
    },
    "instance_group": [{"name": "g", "kind": "KIND_GPU", "count": 2, "gpus": [0, 1]}],
    "version_policy": {"specific": {"versions": [1, 3]}},
    "parameters": {"naiad.retry": {"string_value": "false"}, "x": {"string_value": "y"}},
    "model_transaction_policy": {"decoupled": True},
    "model_warmup": [{"name": "w"}],
}


def test_reads_every_part() -> None:
    config = ModelConfig.from_json(JSON)

    assert (config.name, config.backend, config.max_batch_size) == ("m", "onnxruntime", 8)
    a, b = config.inputs
    assert (a.data_type, a.dims, a.optional, a.model_dims) == ("FP32", (3, -1), True, (3, -1))
    assert (b.data_type, b.reshape, b.model_dims) == ("BYTES", (), ())
    assert (config.outputs[0].data_type, config.outputs[0].label_filename) == ("", "l.txt")
    assert config.full_shape(a) == (-1, 3, -1)
    assert config.instance_groups[0].gpus == (0, 1)
    assert config.version_policy == VersionPolicy("specific", 0, (1, 3))
    assert config.decoupled
    assert config.naiad.retry is False
    assert config.parameters == {"naiad.retry": "false", "x": "y"}


def test_priority_levels_may_be_huge_and_each_level_has_a_policy() -> None:
    batching = ModelConfig.from_json(JSON).dynamic_batching

    assert batching is not None
    assert batching.priority_levels == 2**64 - 1
    assert batching.policy_of(1).max_queue_size == 7
    assert batching.policy_of(2**32).timeout_action == "DELAY"


def test_missing_fields_have_their_defaults() -> None:
    config = ModelConfig.from_json({"name": "m"})

    assert config.dynamic_batching is None
    assert config.version_policy == VersionPolicy("latest", 1)
    assert config.inputs == ()
    assert config.full_shape(ModelConfig.from_json(JSON).inputs[0]) == (3, -1)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"latest": {"num_versions": 0}}, VersionPolicy("latest", 0)),
        ({"all": {}}, VersionPolicy("all", 0)),
        ({}, VersionPolicy("latest", 1)),
    ],
)
def test_version_policies(policy: dict[str, Any], expected: VersionPolicy) -> None:
    assert ModelConfig.from_json({"version_policy": policy}).version_policy == expected


def test_json_keeps_everything_and_is_a_copy() -> None:
    config = ModelConfig.from_json(JSON)
    copy = config.to_json()
    copy["input"][0]["name"] = "changed"

    assert config.to_json() == JSON
    assert ModelConfig.from_json(config.to_json()) == config


def test_a_copy_with_other_fields_agrees_with_its_json() -> None:
    config = ModelConfig.from_json(JSON).with_fields(max_batch_size=2, input=[])

    assert (config.max_batch_size, config.inputs) == (2, ())
    assert config.to_json()["max_batch_size"] == 2
    assert config.to_json()["model_warmup"] == [{"name": "w"}]


@pytest.mark.parametrize(
    ("json", "text"),
    [
        ({"max_batch_size": "8"}, "max_batch_size: expected int, got str"),
        ({"max_batch_size": True}, "max_batch_size: expected int, got bool"),
        ({"input": {}}, "input: expected list"),
        ({"input": ["a"]}, r"input\[0\]: expected an object"),
        ({"input": [{"dims": ["3"]}]}, "dims: expected whole numbers"),
    ],
)
def test_wrong_types_name_the_field(json: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        ModelConfig.from_json(json)

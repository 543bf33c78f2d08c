"""What a backend or a model completed is read, shown and judged like what was written."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.config.completed import completed, completion_faults
from naiad.config.model import ModelConfig
from naiad.config.normalise import normalise
from naiad.config.pbtxt import parse
from naiad.protocol.errors import RequestError

TENSOR = {"name": "I", "data_type": "TYPE_FP32", "dims": [4]}
INPUT = {
    "name": "I",
    "data_type": "TYPE_FP32",
    "format": "FORMAT_NONE",
    "dims": [4],
    "is_shape_tensor": False,
    "allow_ragged_batch": False,
    "optional": False,
    "is_non_linear_format_io": False,
}
OUTPUT = {
    "name": "I",
    "data_type": "TYPE_FP32",
    "dims": [4],
    "label_filename": "",
    "is_shape_tensor": False,
    "is_non_linear_format_io": False,
}
BATCHING = {
    "preferred_batch_size": [4],
    "max_queue_delay_microseconds": 0,
    "preserve_ordering": False,
    "priority_levels": 0,
    "default_priority_level": 0,
    "priority_queue_policy": {},
}
"""All as Triton 2.51 shows them."""


def written(text: str = "") -> ModelConfig:
    parsed = parse(f'name: "m" backend: "python" {text}'.encode())
    assert parsed.json is not None
    return ModelConfig.from_json(normalise(parsed.json))


def edited(given: ModelConfig, **changes: Any) -> ModelConfig:
    return completed(given, {**given.raw, **changes})


def test_what_was_completed_has_every_field_and_the_defaults() -> None:
    config = edited(
        written(), max_batch_size=4, input=[TENSOR], output=[TENSOR], dynamic_batching={}
    )

    assert config.raw["input"] == [INPUT]
    assert config.raw["output"] == [OUTPUT]
    assert config.raw["dynamic_batching"] == BATCHING
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.preferred_batch_size == (4,)


def test_it_is_what_the_same_config_is_when_it_is_written() -> None:
    tensor = '{ name: "I" data_type: TYPE_FP32 dims: 4 }'
    other = written(f"max_batch_size: 4 input {tensor} output {tensor} dynamic_batching {{ }}")
    config = edited(
        written(), max_batch_size=4, input=[TENSOR], output=[TENSOR], dynamic_batching={}
    )

    assert config.raw == other.raw
    assert edited(config) is config


def test_sub_messages_and_types_are_those_of_protobufs_json() -> None:
    policy = {"default_queue_policy": {"max_queue_size": 3}, "maxQueueDelayMicroseconds": "7"}
    tensor = {**TENSOR, "dims": ["4"], "data_type": "type_fp32", "reshape": {"shape": [2, 2]}}
    config = edited(written(), max_batch_size=2, input=[tensor], dynamic_batching=policy)

    assert config.raw["input"] == [{**INPUT, "reshape": {"shape": [2, 2]}}]
    assert config.raw["dynamic_batching"]["max_queue_delay_microseconds"] == 7
    assert config.raw["dynamic_batching"]["default_queue_policy"] == {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": 0,
        "allow_timeout_override": False,
        "max_queue_size": 3,
    }


def test_a_chosen_scheduler_and_what_was_acted_upon_stay() -> None:
    given = written("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5 }")
    config = edited(
        given,
        dynamic_batching={"max_queue_delay_microseconds": 9},
        instance_group=[{"count": 3}],
        parameters={"x": {"string_value": "y"}},
        bogus=1,
    )
    without = completed(given, {"max_batch_size": 4})

    assert config is given
    assert without.raw["dynamic_batching"] == given.raw["dynamic_batching"]


def test_what_was_taken_away_is_gone() -> None:
    given = written('max_batch_size: 4 input { name: "I" data_type: TYPE_FP32 dims: 4 }')

    assert completed(given, {"max_batch_size": 4}).raw["input"] == []
    assert edited(given, max_batch_size=None).max_batch_size == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input": [{**TENSOR, "bogus": 1}]}, 'no field named "bogus" in "input[0]"'),
        ({"input": [{**TENSOR, "data_type": "TYPE_FP3"}]}, "data_type: no DataType TYPE_FP3"),
        ({"input": [{**TENSOR, "data_type": 99}]}, "99 stands for no DataType"),
        ({"input": [{**TENSOR, "dims": ["four"]}]}, "dims"),
        ({"max_batch_size": "many"}, "max_batch_size"),
        ({"dynamic_batching": 3}, "dynamic_batching"),
    ],
)
def test_what_cannot_be_read(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as raised:
        edited(written(), **changes)

    assert said in raised.value.message
    assert "override" not in raised.value.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input": [{**TENSOR, "dims": [0]}]}, "input[0].dims[0]: expected 1 or more"),
        ({"input": [{**TENSOR, "dims": []}]}, "input[0].dims: no dims"),
        (
            {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8]}},
            "dynamic_batching.preferred_batch_size[0]: expected 1 to max_batch_size (4), got 8",
        ),
        ({"max_batch_size": -1}, "max_batch_size: expected 0 or more"),
        ({"input": [{**TENSOR, "allow_ragged_batch": True}]}, "not in this release"),
        ({"sequence_batching": {"direct": {}}}, "not in this release"),
        ({"model_transaction_policy": {"decoupled": True}}, "not in this release"),
    ],
)
def test_what_cannot_be_served(changes: dict[str, Any], said: str) -> None:
    (fault,) = completion_faults(edited(written(), **changes))

    assert said in fault


def test_a_sound_completion_has_no_fault() -> None:
    config = edited(written(), max_batch_size=4, input=[TENSOR], output=[TENSOR])

    assert completion_faults(config) == []

"""Between ModelConfig messages and the JSON of a config query."""

from __future__ import annotations

import json

import pytest

from naiad.config.pbtxt import parse
from naiad.config.proto_json import json_to_message, message_to_json, override_to_message
from naiad.protocol.errors import RequestError

TEXT = b"""
name: "m" max_batch_size: 8
input { name: "a" data_type: TYPE_FP32 dims: [ -1, 9007199254740993 ] reshape { } }
dynamic_batching {
  priority_levels: 18446744073709551615
  priority_queue_policy { key: 2 value { timeout_action: DELAY } }
}
instance_group { kind: KIND_CPU }
parameters { key: "k" value { string_value: "v" } }
model_warmup { name: "w" inputs { key: "a" value { dims: 1 zero_data: true } } }
optimization { cuda { graph_spec { input { key: "a" value { dim: [ 1, 2 ] } } } } }
"""


def test_numbers_are_numbers_enums_are_names_and_map_keys_are_strings() -> None:
    config, faults = parse(TEXT)

    assert faults == []
    assert config is not None
    assert config["input"][0]["dims"] == [-1, 2**53 + 1]
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["dynamic_batching"]["priority_levels"] == 2**64 - 1
    assert config["dynamic_batching"]["priority_queue_policy"]["2"]["timeout_action"] == "DELAY"
    assert config["parameters"] == {"k": {"string_value": "v"}}


def test_defaults_are_printed_and_absent_messages_and_choices_are_not() -> None:
    config, _ = parse(TEXT)

    assert config is not None
    assert config["input"][0]["optional"] is False
    assert config["input"][0]["reshape"] == {"shape": []}
    assert "sequence_batching" not in config
    assert "version_policy" not in config
    assert config["model_warmup"][0]["inputs"]["a"] == {
        "data_type": "TYPE_INVALID",
        "dims": [1],
        "zero_data": True,
    }


def test_dims_of_cuda_graphs_stay_strings_as_triton_has_them() -> None:
    config, _ = parse(TEXT)

    assert config is not None
    (spec,) = config["optimization"]["cuda"]["graph_spec"]
    assert spec["input"]["a"]["dim"] == ["1", "2"]


def test_back_and_forth_is_the_same() -> None:
    config, _ = parse(TEXT)

    assert config is not None
    assert message_to_json(json_to_message(config)) == (config, [])


def test_an_override_may_be_camel_case_with_strings_for_int64_and_enums_in_any_case() -> None:
    message = override_to_message(
        '{"maxBatchSize": 4, "input": [{"dataType": "type_fp32", "dims": ["3"]}],'
        ' "model_warmup": [{"inputs": {"a": {"data_type": "type_int8"}}}], "dynamicBatching": null}'
    )

    config, _ = message_to_json(message)
    assert config["max_batch_size"] == 4
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["dims"] == [3]
    assert config["model_warmup"][0]["inputs"]["a"]["data_type"] == "TYPE_INT8"
    assert "dynamic_batching" not in config


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ({"max_batch_sise": 1}, 'no field named "max_batch_sise"; did you mean "max_batch_size"?'),
        ({"input": [{"nam": 1}]}, 'no field named "nam" in "input[0]"; did you mean "name"?'),
        ({"input": [{"data_type": "FP32"}]}, "no DataType FP32; did you mean TYPE_FP32?"),
        ({"max_batch_size": 8.5}, "max_batch_size: Couldn't parse integer: 8.5"),
        ({"max_batch_size": 2**40}, "max_batch_size: Value out of range"),
        ({"input": {}}, "input: repeated field"),
        ({"input": [None]}, "null is not allowed"),
        ({"dynamic_batching": {}, "sequence_batching": {}}, "scheduling_choice"),
        ([], "expected a JSON object, got '[]'"),
        (None, "expected a JSON object"),
    ],
)
def test_a_wrong_override_says_which_field(override: object, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        override_to_message(json.dumps(override))

    assert caught.value.message.startswith("Invalid config override: ")
    assert text in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"input":' * 5000, "\x00"])
def test_what_is_no_json_is_an_error_too(text: str) -> None:
    with pytest.raises(RequestError, match="Invalid config override: "):
        override_to_message(text)

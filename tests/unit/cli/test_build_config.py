"""The config of a plan: the ONNX model's own, made over, in a text that reads back as the same."""

from __future__ import annotations

import pytest

from naiad.cli.building.plan_config import plan_config
from naiad.cli.building.profiles import choose_profiles, parse_profile
from naiad.config.model import Json, ModelConfig
from naiad.config.pbtxt import parse, render
from naiad.config.validate import validate

FULL = """
name: "m"
backend: "onnxruntime"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 4 ] reshape { shape: [ 12 ] } } ]
output [ { name: "y" data_type: TYPE_INT64 dims: [ -1 ] label_filename: "labels.txt" } ]
version_policy { specific { versions: [ 1, 2 ] } }
instance_group [ { kind: KIND_CPU count: 7 } ]
dynamic_batching { preferred_batch_size: [ 4, 16 ] max_queue_delay_microseconds: 9 }
optimization {
  graph { level: 1 }
  priority: PRIORITY_MAX
  execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" } ] }
}
parameters [
  { key: "intra_op_thread_count" value { string_value: "1" } },
  { key: "session.set_denormal_as_zero" value { string_value: "1" } },
  { key: "own" value { string_value: "kept" } }
]
"""


def read(text: str) -> ModelConfig:
    parsed = parse(text.encode())
    assert parsed.json is not None, parsed.faults
    assert not parsed.faults
    return ModelConfig.from_json(parsed.json)


def made(text: str, *profiles: str) -> Json:
    """The plan's config after the way through its text."""
    config = read(text)
    chosen = choose_profiles(config, {"x": (-1, 12)}, list(map(parse_profile, profiles)))
    rendered = read(render(plan_config(config, "m.plan", chosen)))
    assert validate(rendered, is_complete=True) == []
    return rendered.to_json()


def test_what_means_something_for_a_plan_stays() -> None:
    given, plan = read(FULL).to_json(), made(FULL)
    for key in ("name", "max_batch_size", "input", "output", "version_policy", "dynamic_batching"):
        assert plan[key] == given[key], key
    assert plan["optimization"]["priority"] == "PRIORITY_MAX"
    assert plan["parameters"] == {"own": {"string_value": "kept"}}


def test_the_engine_is_tensorrt_on_a_gpu() -> None:
    plan = made(FULL)
    assert (plan["backend"], plan["platform"]) == ("tensorrt", "tensorrt_plan")
    assert plan["default_model_filename"] == "m.plan"
    (group,) = plan["instance_group"]
    assert (group["kind"], group["count"], group["profile"]) == ("KIND_GPU", 1, [])
    assert not {"graph", "execution_accelerators"} & plan["optimization"].keys()


def test_instances_on_gpus_are_kept_and_get_all_profiles() -> None:
    groups = "instance_group [ { kind: KIND_GPU count: 2 gpus: [ 1 ] }, { kind: KIND_CPU } ]"
    text = FULL.replace("instance_group [ { kind: KIND_CPU count: 7 } ]", groups)
    (group,) = made(text, "1:1:4", "5:16:16")["instance_group"]
    assert (group["count"], group["gpus"], group["profile"]) == (2, [1], ["0", "1"])


@pytest.mark.parametrize(
    ("group", "count", "gpus"),
    [
        ("count: 4", 4, []),
        ("kind: KIND_AUTO count: 3 gpus: [ 1 ]", 3, [1]),
        ("gpus: [ 0, 2 ]", 0, [0, 2]),
    ],
)
def test_instances_that_may_be_anywhere_move_to_a_gpu_as_they_are(
    group: str, count: int, gpus: list[int]
) -> None:
    text = FULL.replace("kind: KIND_CPU count: 7", group)
    (made_group,) = made(text, "1:1:4", "5:16:16")["instance_group"]
    assert made_group["kind"] == "KIND_GPU"
    assert (made_group["count"], made_group["gpus"]) == (count, gpus)
    assert made_group["profile"] == ["0", "1"]


def test_onnx_files_of_single_gpus_are_not_the_plans() -> None:
    files = 'cc_model_filenames [ { key: "8.9" value: "a.onnx" }, { key: "9.0" value: "b.plan" } ]'
    assert made(FULL + files)["cc_model_filenames"] == {"9.0": "b.plan"}
    assert not made(FULL + files.replace("b.plan", "B.ONNX")).get("cc_model_filenames")


def test_batches_are_no_larger_than_the_plan_takes() -> None:
    plan = made(FULL, "1:2:8")
    assert plan["max_batch_size"] == 8
    assert plan["dynamic_batching"]["preferred_batch_size"] == [4]
    assert made(FULL, "1:2:64")["max_batch_size"] == 16


@pytest.mark.parametrize("name", ['"', "é", "a\\b", "new\nline", "x:0/y.z"])
def test_any_name_comes_back_from_the_text(name: str) -> None:
    json: Json = {"name": name, "input": [{"name": name, "data_type": "TYPE_FP32", "dims": [1]}]}
    assert read(render(json)).inputs[0].name == name

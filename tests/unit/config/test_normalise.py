"""What is filled in: names and backends from files, and Triton's defaults."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.config.normalise import complete, normalise
from naiad.config.surroundings import Surroundings

TWO_GPUS = Surroundings(devices=("cpu", "gpu:a", "gpu:b"))
CPU_INSTEAD = Surroundings(on_missing_gpu="cpu")


@pytest.mark.parametrize(
    ("json", "directory", "files", "backend", "filename"),
    [
        ({}, "m", ["model.onnx"], "onnxruntime", "model.onnx"),
        ({}, "m", ["model.py"], "python", "model.py"),
        ({}, "m", ["model.plan", "model.onnx"], "tensorrt", "model.plan"),
        ({}, "m", ["model.pt2"], "pytorch", "model.pt2"),
        ({}, "m", ["model.graphdef"], "tensorflow", "model.graphdef"),
        ({}, "m.python", [], "python", "model.py"),
        ({"default_model_filename": "enc.onnx"}, "m", ["enc.onnx"], "onnxruntime", "enc.onnx"),
        ({"platform": "onnxruntime_onnx"}, "m", [], "onnxruntime", "model.onnx"),
        ({"platform": "tensorflow_savedmodel"}, "m", [], "tensorflow", "model.savedmodel"),
        ({"backend": "pytorch"}, "m", ["model.pt2"], "pytorch", "model.pt2"),
        ({"backend": "python", "default_model_filename": "x.py"}, "m", [], "python", "x.py"),
        ({"backend": "identity"}, "m", [], "identity", ""),
        ({"backend": "mine"}, "m", ["model.onnx"], "mine", ""),
        ({"platform": "tensorrt"}, "m", [], "tensorrt", "model.plan"),
    ],
)
def test_backend_and_file_name(
    json: dict[str, Any], directory: str, files: list[str], backend: str, filename: str
) -> None:
    completed = complete(json, directory_name=directory, files=files)

    assert completed.faults == []
    assert completed.json["backend"] == backend
    assert completed.json["default_model_filename"] == filename
    assert completed.json["name"] == directory


def test_the_platform_of_a_known_backend_is_shown() -> None:
    json = complete({"backend": "onnxruntime"}, directory_name="m", files=[]).json

    assert json["platform"] == "onnxruntime_onnx"


def test_a_backends_name_as_platform_is_taken_with_a_warning() -> None:
    completed = complete({"platform": "tensorrt"}, directory_name="m", files=[])

    assert completed.json["platform"] == "tensorrt_plan"
    assert completed.warnings == ['platform: "tensorrt" is a backend\'s name; taken as backend']


@pytest.mark.parametrize(
    ("json", "files", "where", "text"),
    [
        ({}, [], "backend", "looked for model.savedmodel, "),
        ({}, ["a\nb"], "backend", r"found 'a\nb'"),
        ({"ensemble_scheduling": {}}, [], "backend", 'so write platform: "ensemble"'),
        ({"platform": "onnxruntime"}, [], "", ""),
        ({"platform": "onnxruntime_onx"}, [], "platform", 'did you mean "onnxruntime_onnx"?'),
        ({"platform": "caffe2"}, [], "platform", "known platforms: "),
        (
            {"name": "other", "backend": "python"},
            [],
            "name",
            "directory name must equal model name",
        ),
    ],
)
def test_what_cannot_be_known_is_a_fault(
    json: dict[str, Any], files: list[str], where: str, text: str
) -> None:
    faults = complete(json, directory_name="m", files=files).faults

    assert [fault.where for fault in faults] == ([where] if where else [])
    assert text in "".join(map(str, faults))


def test_an_ensemble_has_no_backend() -> None:
    completed = complete({"platform": "ensemble"}, directory_name="m", files=["model.onnx"])

    assert completed.faults == []
    assert "backend" not in completed.json


def test_defaults_of_a_plain_model() -> None:
    json = normalise({"name": "m", "backend": "python", "max_batch_size": 4})

    assert json["version_policy"] == {"latest": {"num_versions": 1}}
    assert json["optimization"]["input_pinned_memory"] == {"enable": True}
    assert json["optimization"]["output_pinned_memory"] == {"enable": True}
    (group,) = json["instance_group"]
    assert (group["name"], group["kind"], group["count"]) == ("m", "KIND_CPU", 1)


def test_an_ensemble_gets_neither_instances_nor_optimization() -> None:
    json = normalise({"name": "m", "platform": "ensemble"})

    assert "optimization" not in json
    assert "instance_group" not in json


@pytest.mark.parametrize(
    ("batching", "max_batch_size", "preferred"),
    [
        ({}, 8, [8]),
        ({"preferred_batch_size": []}, 8, [8]),
        ({"preferred_batch_size": [2]}, 8, [2]),
        ({}, 0, None),
    ],
)
def test_no_preferred_size_prefers_the_largest(
    batching: dict[str, Any], max_batch_size: int, preferred: list[int] | None
) -> None:
    json = normalise({"dynamic_batching": batching, "max_batch_size": max_batch_size})

    assert json["dynamic_batching"].get("preferred_batch_size") == preferred


def test_sequences() -> None:
    direct = normalise({"sequence_batching": {}})["sequence_batching"]
    oldest = normalise({"max_batch_size": 2, "sequence_batching": {"oldest": {}}})

    assert direct["max_sequence_idle_microseconds"] == 1_000_000
    assert "direct" in direct
    assert oldest["sequence_batching"]["oldest"]["preferred_batch_size"] == [2]
    assert "direct" not in oldest["sequence_batching"]


@pytest.mark.parametrize(
    ("group", "surroundings", "kind", "gpus"),
    [
        ({}, Surroundings(), "KIND_CPU", []),
        ({}, TWO_GPUS, "KIND_GPU", [0, 1]),
        ({"gpus": [1]}, TWO_GPUS, "KIND_GPU", [1]),
        ({"gpus": [2]}, TWO_GPUS, "KIND_CPU", []),
        ({"gpus": [0]}, Surroundings(), "KIND_CPU", []),
        ({"kind": "KIND_GPU"}, TWO_GPUS, "KIND_GPU", [0, 1]),
        ({"kind": "KIND_GPU", "gpus": [0]}, Surroundings(), "KIND_GPU", [0]),
        ({"kind": "KIND_GPU", "gpus": [0]}, CPU_INSTEAD, "KIND_CPU", []),
        ({"kind": "KIND_CPU"}, TWO_GPUS, "KIND_CPU", []),
        ({"kind": "KIND_MODEL"}, TWO_GPUS, "KIND_MODEL", []),
    ],
)
def test_where_instances_run(
    group: dict[str, Any], surroundings: Surroundings, kind: str, gpus: list[int]
) -> None:
    (placed,) = normalise({"name": "m", "instance_group": [group]}, surroundings)["instance_group"]

    assert (placed["kind"], placed["gpus"]) == (kind, gpus)


@pytest.mark.parametrize(
    ("group", "surroundings", "gpus"),
    [
        ({}, Surroundings(), []),
        ({}, TWO_GPUS, [0, 1]),
        ({"kind": "KIND_GPU"}, CPU_INSTEAD, []),
        ({"gpus": [3]}, Surroundings(), [3]),
    ],
)
def test_engines_never_move_to_the_cpu(
    group: dict[str, Any], surroundings: Surroundings, gpus: list[int]
) -> None:
    config = {"backend": "tensorrt", "instance_group": [group]}
    (placed,) = normalise(config, surroundings)["instance_group"]
    assert (placed["kind"], placed["gpus"]) == ("KIND_GPU", gpus)


def test_what_has_no_use_for_a_gpu_is_on_the_cpu() -> None:
    surroundings = Surroundings(devices=("cpu", "gpu:a"), cpu_backends=("onnxruntime",))
    found = {
        (backend, kind): normalise(
            {"backend": backend, "instance_group": [{"kind": kind}]}, surroundings
        )["instance_group"][0]["kind"]
        for backend in ("onnxruntime", "python")
        for kind in ("KIND_AUTO", "KIND_GPU")
    }
    assert found == {
        ("onnxruntime", "KIND_AUTO"): "KIND_CPU",
        ("onnxruntime", "KIND_GPU"): "KIND_GPU",
        ("python", "KIND_AUTO"): "KIND_GPU",
        ("python", "KIND_GPU"): "KIND_GPU",
    }


@pytest.mark.parametrize(
    ("backend", "group", "count"),
    [
        ("onnxruntime", {"kind": "KIND_CPU"}, 2),
        ("onnxruntime", {"kind": "KIND_GPU"}, 1),
        ("onnxruntime", {"kind": "KIND_CPU", "count": 1}, 1),
        ("python", {"kind": "KIND_CPU"}, 1),
        ("python", {"count": 5}, 5),
    ],
)
def test_counts(backend: str, group: dict[str, Any], count: int) -> None:
    groups = normalise({"name": "m", "backend": backend, "instance_group": [group]})

    assert groups["instance_group"][0]["count"] == count
    assert groups["instance_group"][0]["name"] == "m_0"


def test_twice_is_as_once_and_the_argument_is_untouched() -> None:
    given = {"name": "m", "max_batch_size": 2, "dynamic_batching": {}, "instance_group": [{}]}
    once = normalise(given)

    assert normalise(once) == once
    assert given["instance_group"] == [{}]

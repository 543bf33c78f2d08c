"""What the repository helper answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from naiad.config.helper import answer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "identity"')
    return tmp_path / "m"


def test_scan(model: Path) -> None:
    reply = answer({"id": 7, "op": "scan", "repositories": [str(model.parent)], "names": None})

    assert reply["id"] == 7
    (found,) = reply["result"]["models"]
    assert (found["name"], found["versions"], found["faults"]) == ("m", [1], [])


def test_scan_for_names(model: Path) -> None:
    request = {"id": 1, "op": "scan", "repositories": [str(model.parent)], "names": ["m", "dne"]}

    result = answer(request)["result"]

    assert [found["name"] for found in result["models"]] == ["m"]
    assert list(result["missing"]) == ["dne"]


def test_a_scan_knows_the_surroundings(model: Path) -> None:
    (model / "config.pbtxt").write_text('backend: "x" instance_group { kind: KIND_GPU }')
    request = {"id": 1, "op": "scan", "repositories": [str(model.parent)], "on_missing_gpu": "cpu"}

    (cpu,) = answer({**request, "backends": ["x"]})["result"]["models"]
    devices = ["cpu", "gpu:1"]
    (gpu,) = answer({**request, "backends": ["y"], "devices": devices})["result"]["models"]

    assert cpu["faults"] == []
    assert cpu["config"]["instance_group"][0]["kind"] == "KIND_CPU"
    assert "installed backends: y" in gpu["faults"][0]
    assert gpu["config"]["instance_group"][0]["gpus"] == [0]


def test_override(model: Path) -> None:
    override = '{"backend": "identity", "max_batch_size": 2}'

    result = answer(overriding("m", override, model.parent))["result"]

    (found,) = result["models"]
    assert (found["config"]["max_batch_size"], found["directory"]) == (2, str(model))


def test_an_override_finds_no_model_that_a_load_without_one_would_not(
    model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (other / "m" / "1").mkdir(parents=True)

    twice = answer(overriding("m", "{}", model.parent, other))["result"]
    nowhere = answer(overriding("n", "{}", model.parent))["result"]

    assert "duplicate model" in twice["models"][0]["faults"][0]
    assert (nowhere["models"], list(nowhere["missing"])) == ([], ["n"])


def overriding(name: str, config_json: str, *repositories: Path) -> dict[str, Any]:
    places = [str(path) for path in repositories]
    return {
        "id": 1, "op": "override", "repositories": places, "name": name, "config_json": config_json
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"config_json": '{"nme": 1}'}, "invalid_argument", "Invalid config override: no field"),
        ({"config_json": 1}, "protocol_error", "config_json: expected str, got int"),
        ({"op": "nope"}, "protocol_error", "unknown op 'nope'; known are scan, override"),
        ({"op": "scan", "repositories": "x"}, "protocol_error", "repositories: expected list"),
        ({"op": "scan", "repositories": [1]}, "internal", "TypeError"),
        ({"op": "scan", "on_missing_gpu": "x"}, "protocol_error", "expected fail or cpu"),
    ],
)
def test_a_wrong_request_is_an_error_reply(
    model: Path, change: dict[str, Any], code: str, text: str
) -> None:
    request = {**overriding("m", "{}", model.parent), "id": 3, **change}

    reply = answer(request)

    assert reply["id"] == 3
    assert reply["error"][0] == code
    assert text in reply["error"][1]

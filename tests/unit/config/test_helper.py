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


def test_parse_knows_the_surroundings(model: Path) -> None:
    (model / "config.pbtxt").write_text('backend: "x" instance_group { kind: KIND_GPU }')
    request = {"id": 1, "op": "parse", "directory": str(model), "on_missing_gpu": "cpu"}

    cpu = answer({**request, "backends": ["x"]})["result"]
    gpu = answer({**request, "backends": ["y"], "devices": ["cpu", "gpu:1"]})["result"]

    assert cpu["faults"] == []
    assert cpu["config"]["instance_group"][0]["kind"] == "KIND_CPU"
    assert "installed backends: y" in gpu["faults"][0]
    assert gpu["config"]["instance_group"][0]["gpus"] == [0]


def test_override(model: Path) -> None:
    request = {"id": 1, "op": "override", "name": "m", "directory": str(model)}
    override = '{"backend": "identity", "max_batch_size": 2}'

    assert answer({**request, "config_json": override})["result"]["config"]["max_batch_size"] == 2


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"config_json": '{"nme": 1}'}, "invalid_argument", "Invalid config override: no field"),
        ({"name": "n", "config_json": "{}"}, "invalid_argument", "not the directory of model"),
        ({"config_json": 1}, "protocol_error", "config_json: expected str, got int"),
        ({"op": "nope"}, "protocol_error", "unknown op 'nope'; known are scan, parse, override"),
        ({"op": "scan", "repositories": "x"}, "protocol_error", "repositories: expected list"),
        ({"op": "scan", "repositories": [1]}, "internal", "TypeError"),
        ({"op": "parse", "on_missing_gpu": "x"}, "protocol_error", "expected fail or cpu"),
    ],
)
def test_a_wrong_request_is_an_error_reply(
    model: Path, change: dict[str, Any], code: str, text: str
) -> None:
    request = {"id": 3, "op": "override", "name": "m", "directory": str(model), **change}

    reply = answer(request)

    assert reply["id"] == 3
    assert reply["error"][0] == code
    assert text in reply["error"][1]

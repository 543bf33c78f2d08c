"""Loading and unloading through both doors: what cannot be loaded harms nobody and says why."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.front_door import Door, Given, GrpcDoor, HttpDoor, Refused
from support.models import add_python
from support.models_python import ECHO

ONE = Given("INPUT0", "FP32", [1], struct.pack("<f", 1))
ECHO_CONFIG = """
name: "{name}" platform: "ensemble" max_batch_size: 0
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
ensemble_scheduling {{ step {{
  model_name: "{step}" model_version: -1
  input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }}
}} }}
"""


@pytest.fixture
def python_model(repository: Path, door: Door) -> Iterator[Path]:
    """A model.py whose import fails; the model is not loaded yet."""
    name = f"broken_{door.name}"
    shape = (["INPUT0 FP32 -1"], ["OUTPUT0 FP32 -1"])
    model = add_python(repository, name, "import nothing_of_this_name\n", *shape)
    yield model / "1" / "model.py"
    door.unload(name)


def test_a_model_that_does_not_import_fails_alone_and_loads_once_it_is_right(
    door: Door, python_model: Path
) -> None:
    name = python_model.parents[1].name
    for source, reason in (
        ("import nothing_of_this_name\n", "nothing_of_this_name"),
        ("def execute(:\n", "model.py"),
    ):
        python_model.write_text(source)
        with pytest.raises(Refused, match=reason):
            door.load(name)
        assert door.index()[name]["state"] == "UNAVAILABLE"
        assert reason in door.index()[name]["reason"]
        assert door.infer("fp32", [ONE])["OUTPUT0"].data == ONE.data
    python_model.write_text(ECHO)
    door.load(name)
    assert door.is_model_ready(name)
    assert door.infer(name, [ONE])["OUTPUT0"].data == ONE.data


def test_an_unloaded_model_is_not_ready_and_the_server_is(door: Door) -> None:
    assert door.is_model_ready("spare")
    door.unload("spare")
    assert not door.is_model_ready("spare")
    assert door.is_ready()
    with pytest.raises(Refused) as caught:
        door.infer("spare", [ONE])
    assert caught.value.code in ("NOT_FOUND", "UNAVAILABLE")
    door.load("spare")
    assert door.is_model_ready("spare")
    assert door.is_ready()


@pytest.mark.parametrize(
    "name", ["../secret", "../../etc", "model/", " ..", "..", ".", "\t", "a\nb", "/etc", "x" * 4000]
)
def test_a_name_that_nothing_can_have_is_refused_before_anything_is_looked_up(
    door: Door, name: str
) -> None:
    with pytest.raises(Refused) as loading:
        door.load(name)
    with pytest.raises(Refused) as asking:
        door.infer(name, [ONE])
    for refused in (loading.value, asking.value):
        assert refused.code in ("INVALID_ARGUMENT", "NOT_FOUND")
        assert "No such file" not in refused.text


def test_an_empty_name_is_refused(http: HttpDoor, grpc_door: GrpcDoor) -> None:
    assert http.call("POST", "/v2/repository/models//load").status in (400, 404)
    for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
        with pytest.raises(Refused) as caught:
            grpc_door.ask(method, model_name="")
        assert caught.value.code in ("INVALID_ARGUMENT", "NOT_FOUND")


@pytest.mark.parametrize("step", ["../secret", "../../etc"])
def test_an_ensemble_step_that_is_a_path_is_told_the_same_whether_or_not_it_is_there(
    door: Door, repository: Path, step: str
) -> None:
    name = f"chain_{door.name}"
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(ECHO_CONFIG.format(name=name, step=step))
    secret = repository.parent / "secret"
    told = []
    for is_there in (False, True):
        if is_there:
            secret.mkdir(exist_ok=True)
        with pytest.raises(Refused) as caught:
            door.load(name)
        told.append(caught.value.text)
    secret.rmdir()
    door.unload(name)
    assert told[0] == told[1]
    assert str(repository.parent) not in told[0]


FILES = ["1/model.onnx", "x" * 256, "../../escaped", "/tmp/escaped", "1/../../escaped", ""]


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("has_config", [False, True])
def test_files_in_a_load_request_write_nothing_outside(
    door: Door, repository: Path, path: str, has_config: bool
) -> None:
    """Whether or not such loads are allowed at all."""
    before = sorted(repository.parent.rglob("*"))
    parameters: dict[str, str | bytes] = {f"file:{path}": b"aGVsbG8="}
    if has_config:
        parameters["config"] = json.dumps({"backend": "identity"})
    with pytest.raises(Refused) as caught:
        door.load(f"from_files_{door.name}", parameters)
    assert caught.value.code in ("INVALID_ARGUMENT", "UNIMPLEMENTED", "PERMISSION_DENIED")
    assert sorted(repository.parent.rglob("*")) == before
    assert not Path("/tmp/escaped").exists()
    assert door.is_ready()

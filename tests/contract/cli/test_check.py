"""`naiad check`: what a server refuses at start is found without one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import naiad.cli.check
from naiad.cli.exit_codes import ExitCode
from naiad.cli.main import main
from naiad.config.gpu_listing import FoundGpus
from naiad.config.validate import INSTANCES_MAX
from support.onnx_models import Tensor, write_model

X = 'input { name: "x" data_type: TYPE_FP32 dims: 4 }'
Y = 'output { name: "y" data_type: TYPE_FP32 dims: 4 }'
PAGE = b"<!DOCTYPE html>\n<html><body>Not found</body></html>"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def plant(repository: Path, config: str | None, name: str = "m") -> Path:
    """A model's folder with an empty version 1, whose path is returned."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    if config is not None:
        (version.parent / "config.pbtxt").write_text(config)
    return version


def add(folder: Path) -> None:
    nodes = [("Add", ["a", "a"], ["b"])]
    made = folder / "made"
    write_model(made, nodes, [Tensor("a", "FP32", [4])], [Tensor("b", "FP32", [4])])
    (made / "1" / "model.onnx").rename(folder / "model.onnx")
    shutil.rmtree(made)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('backend: "foo"', 'backend "foo" is not installed; installed backends: identity, '),
        ('backend: "../../etc"', 'backend "../../etc" is not installed'),
        (f'backend: "identity" input {{ name: "x" dims: 4 }} {Y}', "input[0].data_type: no data"),
        (
            f'backend: "identity" input {{ name: "x" data_type: TYPE_INVALID dims: 4 }} {Y}',
            "input[0].data_type: no data",
        ),
        (f'backend: "identity" {Y}', "output: identity answers with its inputs"),
        (
            f'backend: "identity" input {{ name: "x" data_type: TYPE_INT8 dims: {[1] * 33} }}',
            "input[0].dims: expected at most 32 dimensions, got 33",
        ),
        (
            f'backend: "identity" {X} {Y} max_batch_size: 8 '
            f'output {{ name: "z" data_type: TYPE_INT8 dims: 1 reshape {{ shape: {[1] * 32} }} }}',
            "output[1].reshape.shape: expected at most 31 dimensions beside the batch dimension",
        ),
        (
            f'backend: "identity" {X} {Y} instance_group [ {{ count: {INSTANCES_MAX} }}, {{}} ]',
            f"instance_group: expected at most {INSTANCES_MAX} instances, got {INSTANCES_MAX + 1}",
        ),
    ],
)
def test_what_no_server_would_load(
    tmp_path: Path, config: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, config)
    assert main(["check", str(tmp_path)]) == ExitCode.FAILED
    out = capsys.readouterr().out
    assert said in out
    assert out.endswith("1 model, 1 with faults\n")


def fifo(version: Path) -> None:
    os.mkfifo(version / "model.py")


def cut(version: Path) -> None:
    add(version)
    whole = (version / "model.onnx").read_bytes()
    (version / "model.onnx").write_bytes(whole[:-3])


def as_plan(version: Path) -> None:
    add(version)
    (version / "model.onnx").rename(version / "model.plan")


def without_weights(version: Path) -> None:
    add(version)
    path = version / "model.onnx"
    model = onnx.load(str(path))
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    model.graph.initializer.append(weight)
    onnx.save_model(
        model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    (version / "weights.bin").unlink()


def bytes_in(name: str, content: bytes) -> Callable[[Path], None]:
    def make(version: Path) -> None:
        (version / name).write_bytes(content)

    return make


@pytest.mark.parametrize(
    ("make", "backend", "said"),
    [
        (bytes_in("model.onnx", b""), "onnxruntime", "model.onnx' is empty; put"),
        (bytes_in("model.onnx", LFS), "onnxruntime", "is a pointer of Git LFS, not the model; run"),
        (bytes_in("model.onnx", b"x" * 5000), "onnxruntime", "is no ONNX model, or only a part"),
        (bytes_in("model.onnx", bytes(999)), "onnxruntime", "is no ONNX model, or only a part"),
        (bytes_in("model.onnx", b"\x08\x0a"), "onnxruntime", "is no ONNX model, or only a part"),
        (cut, "onnxruntime", "is no ONNX model, or only a part"),
        (bytes_in("model.onnx", PAGE), "onnxruntime", "is a web page, not the model; download"),
        (without_weights, "onnxruntime", "not beside it: 'weights.bin'; copy them there, or"),
        (bytes_in("model.plan", b""), "tensorrt", "model.plan' is empty; put"),
        (bytes_in("model.plan", LFS), "tensorrt", "is a pointer of Git LFS, not the model; run"),
        (bytes_in("model.plan", PAGE), "tensorrt", "is a web page, not the model; download"),
        (
            as_plan,
            "tensorrt",
            "is an ONNX model, not a TensorRT plan; build one with `naiad",
        ),
        (lambda version: (version / "model.plan").mkdir(), "tensorrt", "is a directory; put the"),
        (lambda version: (version / "model.onnx").mkdir(), "onnxruntime", "is nothing; put the"),
        (lambda version: (version / "model.py").mkdir(), "python", "model.py' is a directory; put"),
        (fifo, "python", "model.py is a named pipe"),
        (bytes_in("model.py", b""), "python", "model.py' is empty"),
        (bytes_in("model.py", LFS), "python", "is a pointer of Git LFS"),
    ],
)
def test_files_that_cannot_be_a_model(
    tmp_path: Path,
    make: Callable[[Path], None],
    backend: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(plant(tmp_path, f'backend: "{backend}"'))
    assert main(["check", "--json", "--gpus", "GPU-a", str(tmp_path)]) == ExitCode.FAILED
    (model,) = json.loads(capsys.readouterr().out)["models"]
    (fault,) = model["faults"]
    assert said in fault


def test_models_are_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(plant(tmp_path, None, "plain"))
    beside = plant(tmp_path, None, "beside") / "model.onnx"
    beside.mkdir()
    add(beside)
    bytes_in("model.onnx", b"\x18\0\0\0ORTM\0")(plant(tmp_path, None, "ort"))
    bytes_in("model.py", b"pass")(plant(tmp_path, None, "code"))
    bytes_in("model.py", b"")(plant(tmp_path, f'backend: "identity" {X} {Y}', "echo"))
    bytes_in("model.plan", b"vtrt")(plant(tmp_path, None, "plan"))
    many = f"backend: 'identity' {X} {Y} instance_group {{ count: {INSTANCES_MAX} }}"
    plant(tmp_path, many, "many")
    assert main(["check", "--gpus", "GPU-a", str(tmp_path)]) == ExitCode.DONE
    assert capsys.readouterr().out.endswith("7 models, 0 with faults\n")


def test_only_versions_that_would_be_served_are_judged(tmp_path: Path) -> None:
    bytes_in("model.onnx", b"")(plant(tmp_path, None))
    (tmp_path / "m" / "2").mkdir()
    add(tmp_path / "m" / "2")
    assert main(["check", str(tmp_path)]) == ExitCode.DONE


def test_nothing_that_is_shown_moves_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, 'backend: "a\\033[31mb" parameters { key: "k" value { string_value: "${" } }')
    (plant(tmp_path, None, "p\x1b[2J") / "model.py").write_text("pass")
    assert main(["check", str(tmp_path)]) == ExitCode.FAILED
    assert main(["check", str(tmp_path / "\x1b[2J")]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert r"a\x1b[31mb" in captured.out


def test_the_folder_of_one_model_is_told_from_a_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(plant(tmp_path, None))
    assert main(["check", str(tmp_path / "m")]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"give its parent '{tmp_path}' (to serve this one alone: `naiad serve --cont" in said


def test_the_configuration_that_a_server_would_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = plant(tmp_path, f'backend: "identity" {X} {Y}')
    configs = version.parent / "configs"
    configs.mkdir()
    (configs / "big.pbtxt").write_text("max_batch_size: x")
    assert main(["check", str(tmp_path)]) == ExitCode.DONE
    assert main(["check", str(tmp_path), "--model-config-name", "big"]) == ExitCode.FAILED
    assert "configs/big.pbtxt:1:17: max_batch_size takes a whole number" in capsys.readouterr().out
    assert main(["check", str(tmp_path), "--model-config-name", "bigg"]) == ExitCode.DONE
    said = "note: no model has a configs/bigg.pbtxt, so each is configured by its config.pbtxt"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a/b", "big.pbtxt"])
def test_a_name_that_no_configuration_can_have(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, f'backend: "identity" {X} {Y}')
    for command in ("check", "serve"):
        assert main([command, str(tmp_path), "--model-config-name", name]) == ExitCode.USAGE
        assert "--model-config-name: expected " in capsys.readouterr().err


def test_nothing_is_filled_in_where_a_server_would_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(plant(tmp_path, 'backend: "onnxruntime"'))
    assert main(["check", str(tmp_path)]) == ExitCode.DONE
    strict = ["check", str(tmp_path), "--disable-auto-complete-config"]
    assert main(strict) == ExitCode.FAILED
    assert "input, output not given" in capsys.readouterr().out


def test_why_gpus_were_not_found_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a server says it at its start: else "no GPU is visible" is a riddle."""
    fault = FoundGpus((), "GPUs cannot be listed (no nvidia-ml-py) and are not used")
    monkeypatch.setattr(naiad.cli.check, "found", lambda _: fault)
    plant(tmp_path, f'backend: "identity" {X} {Y}')
    assert main(["check", str(tmp_path)]) == ExitCode.DONE
    assert f"note: {fault.note}\n" in capsys.readouterr().out

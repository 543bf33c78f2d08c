"""`naiad build` with the real TensorRT-RTX, which builds without a GPU. Whether a plan runs, only a
GPU can tell: here its mark, its size and its config are looked at."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from naiad.cli.building.engine_builder import EngineBuilder, Limits, capabilities
from naiad.cli.building.modules import MODULES, TENSORRT_RTX, Toolkit
from naiad.cli.building.progress import Messages, Phases
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.main import main
from naiad.config.model import ModelConfig
from naiad.config.pbtxt import parse
from support.onnx_models import Tensor, write_echo, write_model
from support.real_packages import real_package

PLAN_MARK = b"vtrt"
EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "model_repository"

rtx: Any = real_package(MODULES[TENSORRT_RTX][1], "naiad[rtx]")


def built(directory: Path, *options: str) -> ExitCode | int:
    return main(["build", str(directory), "--runtime", "tensorrt_rtx", *options])


def config_of(text: str) -> ModelConfig:
    parsed = parse(text.encode())
    assert parsed.json is not None, parsed.faults
    return ModelConfig.from_json(parsed.json)


def write_dense(directory: Path, *, rows: int | None = None) -> Path:
    """y = x W, with a free batch unless there are `rows`."""
    weights = {"w": np.ones((8, 4), np.float32)}
    nodes = [("MatMul", ["x", "w"], ["y"])]
    x, y = Tensor("x", "FP32", [rows, 8]), Tensor("y", "FP32", [rows, 4])
    return write_model(directory, nodes, [x], [y], initialisers=weights)


@pytest.mark.parametrize("name", ["mlp", "magika", "silero_vad"])
def test_example_models_are_built(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = EXAMPLES / name / "1" / "model.onnx"
    if not onnx.exists():
        pytest.skip("the example's file is not there: python scripts/setup_models.py")
    directory = tmp_path / name
    (directory / "1").mkdir(parents=True)
    shutil.copy(EXAMPLES / name / "config.pbtxt", directory)
    (directory / "1" / "model.onnx").symlink_to(onnx)
    assert built(directory) == ExitCode.DONE
    out, err = capsys.readouterr()
    plan = (directory / "1" / "model.plan").read_bytes()
    assert plan.startswith(PLAN_MARK)
    assert len(plan) > 0.9 * onnx.stat().st_size  # the weights are in it
    assert sorted(os.listdir(directory / "1")) == ["model.onnx", "model.plan"]
    assert f"tensorrt_rtx {rtx.__version__} only" in err
    given, made = config_of((directory / "config.pbtxt").read_text()), config_of(out)
    assert (made.backend, made.default_model_filename) == ("tensorrt", "model.plan")
    assert (made.max_batch_size, made.inputs, made.outputs) == (
        given.max_batch_size, given.inputs, given.outputs,
    )  # fmt: skip


def test_a_model_without_config_batches_and_several_profiles_are_in_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_dense(tmp_path / "dense")
    assert built(directory) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert config_of(out).max_batch_size == 4
    assert "from its next load on the plan is served" in err
    one = (directory / "1" / "model.plan").stat().st_size
    assert built(directory, "--force", "--profile", "1:1:4", "--profile", "8:32:32") == 0
    out, err = capsys.readouterr()
    made = config_of(out)
    assert made.max_batch_size == 32
    assert made.instance_groups[0].profile == ("0", "1")
    assert "no profile takes batches of 5 to 7" in err
    assert (directory / "1" / "model.plan").stat().st_size > one


def test_the_config_is_written_and_nothing_is_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_dense(tmp_path / "dense")
    (directory / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 8')
    assert built(directory, "--write-config") == ExitCode.DONE
    out, err = capsys.readouterr()
    assert out == ""
    assert "written; `naiad serve --model-config-name tensorrt` reads it" in err
    made = config_of((directory / "configs" / "tensorrt.pbtxt").read_text())
    assert (made.backend, made.max_batch_size) == ("tensorrt", 8)
    before = (directory / "1" / "model.plan").stat()
    assert built(directory) == ExitCode.USAGE
    assert "model.plan' is there already" in capsys.readouterr().err
    assert built(directory, "--write-config", "--output", str(tmp_path / "p")) == ExitCode.USAGE
    assert "tensorrt.pbtxt' is there already" in capsys.readouterr().err
    assert (directory / "1" / "model.plan").stat() == before
    assert built(directory, "--output", str(tmp_path / "elsewhere.plan")) == ExitCode.DONE
    assert "a server looks for the plan in" in capsys.readouterr().err
    assert (tmp_path / "elsewhere.plan").read_bytes().startswith(PLAN_MARK)


def test_faults_of_the_onnx_are_said_with_their_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = Tensor("x", "FP32", [4]), Tensor("y", "FP32", [4])
    odd = write_model(tmp_path / "odd", [("NoSuchOperator", ["x"], ["y"])], [x], [y])
    assert built(odd) == ExitCode.FAILED
    assert "node 0 (NoSuchOperator): " in capsys.readouterr().err
    broken = write_dense(tmp_path / "broken") / "1" / "model.onnx"
    broken.write_bytes(broken.read_bytes()[:-20])
    assert built(tmp_path / "broken") == ExitCode.FAILED
    assert "is no ONNX model, or only a part of one" in capsys.readouterr().err
    shape = write_model(
        tmp_path / "shape",
        [("Reshape", ["x", "z"], ["y"])],
        [x, Tensor("z", "INT64", [2])],
        [Tensor("y", "FP32", [None, None])],
    )
    assert built(shape) == ExitCode.FAILED
    assert "z: shape tensors" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/1/*.p*"))


def test_what_tensorrt_would_take_otherwise_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = Tensor("x", "FP32", [None, 4]), Tensor("y", "FP32", [None, 4])
    through = write_model(tmp_path / "through", [("Relu", ["x"], ["y"])], [x], [x, y])
    assert built(through) == ExitCode.FAILED
    assert '"x" is an input and an output, which TensorRT renames' in capsys.readouterr().err
    z, s = Tensor("z", "FP32", None), Tensor("s", "FP32", [])
    free = write_model(
        tmp_path / "free",
        [("Add", ["z", "s"], ["t"]), ("Relu", ["t"], ["y"])],
        [z, s],
        [Tensor("y", "FP32", None)],
    )
    assert built(free) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert 'input "z" has no shape, which TensorRT takes for a scalar' in said
    assert '"s"' not in said
    assert not list(tmp_path.glob("*/1/*.p*"))


def test_free_dimensions_need_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_echo(tmp_path / "free", "FP32", [None, None])
    assert built(directory) == ExitCode.FAILED
    assert "--profile INPUT0=N:N:N" in capsys.readouterr().err
    assert built(directory, "--profile", "1:2:4,INPUT0=16:64:256") == ExitCode.DONE
    assert "4x256" in capsys.readouterr().err
    assert built(directory, "--profile", "4:2:1") == ExitCode.USAGE


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "INT64", "BOOL"])
def test_precision_is_that_of_the_onnx(
    tmp_path: Path, datatype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_echo(tmp_path / "echo", datatype, [None, 4])
    assert built(directory) == ExitCode.DONE
    made = config_of(capsys.readouterr().out)
    assert [tensor.data_type for tensor in (*made.inputs, *made.outputs)] == [datatype] * 2


def test_a_config_that_contradicts_the_onnx_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_dense(tmp_path / "dense", rows=1)
    (directory / "config.pbtxt").write_text("max_batch_size: 8")
    assert built(directory) == ExitCode.FAILED
    assert "whose first dimension is not free" in capsys.readouterr().err


def test_gpus_that_it_cannot_build_for_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_dense(tmp_path / "dense")
    assert built(directory, "--compute-capability", "9.0") == ExitCode.USAGE
    assert "does not build for compute capability 9.0; it builds for" in capsys.readouterr().err
    assert built(directory, "--compute-capability", "7.5") == ExitCode.FAILED
    assert "FP32 GEMM is not supported" in capsys.readouterr().err
    options = ["--compute-capability", "8.9", "--compute-capability", "12.0", "--workspace-mib"]
    assert built(directory, *options, "64") == ExitCode.DONE
    assert built(directory, "--force", "--timing-cache", "c") == ExitCode.USAGE


def test_phases_are_told_and_a_build_can_be_cancelled(tmp_path: Path) -> None:
    class Told(Phases):
        def __init__(self) -> None:
            super().__init__()
            self.events: list[tuple[str, str]] = []

        def start(self, name: str, parent: str | None, steps_count: int) -> None:
            self.events.append(("start", name))

        def finish(self, name: str) -> None:
            self.events.append(("finish", name))

    onnx = str(write_dense(tmp_path / "dense", rows=1) / "1" / "model.onnx")
    builder = EngineBuilder(Toolkit(TENSORRT_RTX, rtx), Messages())
    builder.parse(onnx)
    phases = Told()
    assert bytes(builder.build([], Limits(), None, phases)[:4]) == PLAN_MARK
    assert phases.events[0][0] == "start"
    assert phases.events[-1] == ("finish", phases.events[0][1])
    assert len(phases.events) > 4
    phases.cancel()
    with pytest.raises(CommandFailed, match="cancel"):
        builder.build([], Limits(), None, phases)


def test_the_names_that_only_the_full_module_uses_are_real() -> None:
    """For the fake in tests/unit/cli/test_build_parts.py."""
    assert isinstance(rtx, ModuleType)
    assert {"create_timing_cache", "set_timing_cache"} <= set(dir(rtx.IBuilderConfig))
    assert "serialize" in dir(rtx.ITimingCache)
    document = rtx.IBuilderConfig.set_timing_cache.__doc__
    assert "cache" in document
    assert "ignore_mismatch: bool) -> bool" in document
    assert "STRONGLY_TYPED" in rtx.NetworkDefinitionCreationFlag.__members__
    assert {"8.9", "12.0", "current"} <= capabilities(rtx).keys()

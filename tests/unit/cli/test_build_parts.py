"""The parts of a build around TensorRT: the source, files, modules, what it says, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from naiad.cli.building import files, modules
from naiad.cli.building.engine_builder import EngineBuilder, Limits, interruptible
from naiad.cli.building.progress import ERRORS_KEPT_MAX, Messages, Phases
from naiad.cli.building.source import find_source, refuse_unfit
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from support.onnx_models import write_echo

WAIT_S = 30


def plant(root: Path, *paths: str, config: str | None = None) -> str:
    for path in paths:
        (root / "m" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "m" / path).touch()
    if config is not None:
        (root / "m" / "config.pbtxt").write_text(config)
    return str(root / "m")


def test_the_newest_version_with_an_onnx_file_is_built(tmp_path: Path) -> None:
    model = plant(tmp_path, "1/model.onnx", "10/model.onnx", "9/model.onnx", "11/other")
    source = find_source(model, None)
    assert (source.version, source.plan) == (10, f"{model}/10/model.plan")
    assert source.onnx == f"{model}/10/model.onnx"
    assert find_source(model, 9).version == 9
    assert source.config.name == "m"
    assert [source.has_config, source.names_engine, source.serves_plan] == [False] * 3


def test_names_follow_the_config_and_a_directory_holds_external_data(tmp_path: Path) -> None:
    text = 'default_model_filename: "encoder.onnx" max_batch_size: 4'
    source = find_source(plant(tmp_path, "1/encoder.onnx/model.onnx", config=text), None)
    assert source.onnx.endswith("/1/encoder.onnx/model.onnx")
    assert source.plan.endswith("/1/encoder.plan")
    assert source.config.max_batch_size == 4
    assert source.names_engine
    assert not source.serves_plan


@pytest.mark.parametrize("line", ['backend: "tensorrt"', 'platform: "tensorrt_plan"'])
def test_a_plan_can_be_built_again_from_its_own_config(tmp_path: Path, line: str) -> None:
    text = f'{line} instance_group [ {{ kind: KIND_GPU profile: [ "0", "1" ] }} ]'
    source = find_source(plant(tmp_path, "1/model.onnx", config=text), None)
    assert source.serves_plan
    assert files.config_path(source) == f"{source.directory}/config.pbtxt"


@pytest.mark.parametrize(
    ("paths", "config", "version", "said"),
    [
        (["1/model.py"], None, None, "holds an ONNX file, and plans are built from one; put it at"),
        (["1/model.onnx"], None, 2, "2/model.onnx'; versions with one: 1"),
        (["model.onnx"], None, None, "is no model: it has neither a config.pbtxt"),
        (["1/model.onnx"], "max_batch_sise: 4", None, 'did you mean "max_batch_size"?'),
        (["1/model.onnx"], "max_batch_size: -4", None, "max_batch_size: "),
        (["1/model.onnx"], 'name: "other"', None, "directory name must equal model name"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(
    tmp_path: Path, paths: list[str], config: str | None, version: int | None, said: str
) -> None:
    with pytest.raises(CommandFailed) as fault:
        find_source(plant(tmp_path, *paths, config=config), version)
    assert said in fault.value.message
    with pytest.raises(CommandFailed, match="such as model_repository/NAME") as fault:
        find_source(str(tmp_path / "nowhere"), None)
    assert fault.value.code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; put the model's file there"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (b"<!DOCTYPE html><html></html>", "is a web page, not the model"),
        (b"anything", "is no ONNX model, or only a part of one"),
    ],
)
def test_files_that_are_no_onnx(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(CommandFailed, match=said) as fault:
        refuse_unfit(str(path))
    assert fault.value.code == ExitCode.FAILED


@pytest.mark.parametrize("datatype", ["FP64", "UINT16", "BYTES"])
def test_types_that_tensorrt_does_not_have(tmp_path: Path, datatype: str) -> None:
    path = write_echo(tmp_path / "m", datatype, [4]) / "1" / "model.onnx"
    with pytest.raises(CommandFailed, match=f'input "INPUT0" is {datatype}.*cast inside the ONNX'):
        refuse_unfit(str(path))


def test_what_tensorrt_can_read_passes(tmp_path: Path) -> None:
    for datatype in ("FP16", "BF16", "INT64", "BOOL"):
        refuse_unfit(str(write_echo(tmp_path / datatype, datatype, [4]) / "1" / "model.onnx"))
    (tmp_path / "ort").write_bytes(b"\x18\0\0\0ORTM\0")
    refuse_unfit(str(tmp_path / "ort"))


def test_what_is_where_the_onnx_should_be(tmp_path: Path) -> None:
    version = tmp_path / "m" / "3"
    (version / "model.onnx").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").touch()
    with pytest.raises(CommandFailed, match=r"3/model.onnx', which is a directory without a"):
        find_source(str(tmp_path / "m"), None)
    (version / "model.onnx").rmdir()
    (version / "model.onnx").symlink_to("/gone")
    with pytest.raises(CommandFailed, match=r"which is a link to nothing \('/gone'\)"):
        find_source(str(tmp_path / "m"), None)


def test_a_place_that_cannot_be_written_is_found_before_the_build(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files.refuse_unwritable([str(tmp_path / "new" / "deeper" / "plan"), str(tmp_path / "file")])
    assert os.listdir(tmp_path) == ["file"]
    (tmp_path / "closed").mkdir(0o500)
    for path, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "file" / "plan", r"file' is a file"),
        (tmp_path / "closed" / "plan", r"no right to write in .*closed'"),
    ):
        if path.parent.name == "closed" and os.geteuid() == 0:
            continue  # root has every right
        with pytest.raises(CommandFailed, match=why) as fault:
            files.refuse_unwritable([str(path)])
        assert fault.value.code == ExitCode.USAGE


def test_an_interruption_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "plan"
    path.write_bytes(b"old")
    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, interrupt)
            with pytest.raises(KeyboardInterrupt):
                files.write_whole(str(path), b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["plan"]


def test_a_config_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    source = find_source(plant(tmp_path, "1/model.onnx"), None)
    assert files.config_path(source) == f"{source.directory}/config.pbtxt"
    source = find_source(plant(tmp_path, "1/model.onnx", config='backend: "onnxruntime"'), None)
    assert files.config_path(source) == f"{source.directory}/configs/tensorrt.pbtxt"


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan"
    files.write_whole(str(path), b"one")
    files.write_whole(str(path), memoryview(b"two"))
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["plan"]
    with pytest.raises(CommandFailed, match=r"cannot write .*Is a directory"):
        files.write_whole(str(path.parent), b"")
    assert os.listdir(tmp_path) == ["new"]
    with pytest.raises(CommandFailed, match="--force") as fault:
        files.refuse_existing([str(tmp_path / "absent"), str(path)])
    assert fault.value.code == ExitCode.USAGE


def test_a_timing_cache_may_be_missing_but_not_be_anything(tmp_path: Path) -> None:
    assert files.read_cache(str(tmp_path / "absent")) == b""
    with pytest.raises(CommandFailed, match="cannot read"):
        files.read_cache(str(tmp_path))
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(files.CACHE_BYTES_MAX + 1)
    with pytest.raises(CommandFailed, match="no timing cache"):
        files.read_cache(str(huge))


class Installed:
    """Which TensorRTs can be imported, instead of those of this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self._folder = monkeypatch, folder
        for names in modules.MODULES.values():
            for name in names:
                monkeypatch.setitem(sys.modules, name, None)  # import: ModuleNotFoundError

    def has(self, name: str) -> None:
        made = ModuleType(name)
        made.__version__ = "1.2"  # type: ignore[attr-defined]
        self._monkeypatch.setitem(sys.modules, name, made)

    def has_broken(self, name: str) -> None:
        text = 'raise ImportError("libnvinfer.so.11: no such file")'
        (self._folder / f"{name}.py").write_text(text)
        self._monkeypatch.syspath_prepend(str(self._folder))
        self._monkeypatch.delitem(sys.modules, name)

    def gpus(self, count: int) -> None:
        self._monkeypatch.setattr(modules, "cuda_device_count", lambda: count)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Installed:
    return Installed(monkeypatch, tmp_path)


def test_the_module_is_found_under_both_names_and_by_what_can_build(installed: Installed) -> None:
    installed.has("tensorrt")
    installed.has("tensorrt_rtx_bindings")
    installed.gpus(0)
    assert str(modules.find_toolkit("auto")) == "tensorrt_rtx 1.2"
    installed.gpus(1)
    assert modules.find_toolkit("auto").name == "tensorrt"
    assert modules.find_toolkit("tensorrt_rtx").is_rtx
    installed.has_broken("tensorrt")
    assert modules.find_toolkit("auto").is_rtx


def test_what_is_missing_is_said_with_the_command_that_installs_it(installed: Installed) -> None:
    installed.gpus(0)
    with pytest.raises(CommandFailed, match=r'pip install "naiad\[rtx\]"'):
        modules.find_toolkit("auto")
    with pytest.raises(CommandFailed, match="--runtime tensorrt_rtx, which needs none"):
        modules.find_toolkit("tensorrt")
    installed.gpus(1)
    installed.has_broken("tensorrt")
    with pytest.raises(CommandFailed, match=r'libnvinfer.*pip install "naiad\[tensorrt\]"; .*rtx'):
        modules.find_toolkit("auto")


def test_errors_are_kept_once_and_the_last_ones(capsys: pytest.CaptureFixture[str]) -> None:
    messages = Messages()
    for number in range(ERRORS_KEPT_MAX + 3):
        messages.take(1, f" error {number}\n")
        messages.take(1, f"error {number}")
        messages.take(2, "a warning")
    assert list(messages.errors) == [f"error {n}" for n in range(3, ERRORS_KEPT_MAX + 3)]
    assert capsys.readouterr().err == ""
    Messages(is_verbose=True).take(4, "detail \x1b[2J")
    assert capsys.readouterr().err == "detail \\x1b[2J\n"


def test_ctrl_c_asks_for_the_end_and_waits_for_it() -> None:
    phases, main_thread = Phases(), threading.main_thread().ident
    assert main_thread is not None
    seen: list[bool] = []

    def call() -> None:
        signal.pthread_kill(main_thread, signal.SIGINT)
        asked.wait(WAIT_S)
        seen.append(phases.step("building", 0))

    asked = threading.Event()

    def cancel() -> None:
        phases.cancel()
        asked.set()

    with pytest.raises(KeyboardInterrupt):
        interruptible(call, cancel, never)
    assert seen == [False]
    assert interruptible(lambda: 7, cancel, never) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, cancel, never)


def never() -> NoReturn:
    raise AssertionError("only for a second Ctrl-C")


def test_a_second_ctrl_c_leaves_at_once() -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    end = threading.Event()

    def call() -> None:
        signal.pthread_kill(main_thread, signal.SIGINT)
        end.wait(WAIT_S)

    def leave() -> NoReturn:
        raise SystemExit(130)

    with pytest.raises(SystemExit):
        interruptible(call, lambda: signal.pthread_kill(main_thread, signal.SIGINT), leave)
    end.set()


class FakeCache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytes:
        return self.content + b"+"


class FakeTensorRT(ModuleType):
    """As much of the full module as a build with a timing cache touches; its names are held to
    those of the real tensorrt_rtx by tests/contract/cli/test_build.py."""

    __version__ = "11"

    class ILogger:
        pass

    class NetworkDefinitionCreationFlag(IntEnum):
        STRONGLY_TYPED = 1

    class Builder:
        def __init__(self, logger: Any) -> None:
            self.config = FakeBuilderConfig()

        def create_network(self, flags: int) -> Any:
            assert flags == 1 << FakeTensorRT.NetworkDefinitionCreationFlag.STRONGLY_TYPED
            return object()

        def create_builder_config(self) -> Any:
            return self.config

        def build_serialized_network(self, network: Any, config: Any) -> bytes:
            assert isinstance(config, FakeBuilderConfig)
            return b"plan with " + config.cache.content

    class OnnxParser:
        def __init__(self, network: Any, logger: Any) -> None:
            pass


class FakeBuilderConfig:
    cache: FakeCache

    def create_timing_cache(self, content: bytes) -> FakeCache:
        return FakeCache(content)

    def set_timing_cache(self, cache: FakeCache, ignore_mismatch: bool) -> bool:
        self.cache = cache
        return cache.content != b"of another GPU"


@pytest.mark.parametrize(
    ("given", "used"), [(b"", b""), (b"known", b"known"), (b"of another GPU", b"")]
)
def test_a_timing_cache_is_used_if_it_fits_and_grows(given: bytes, used: bytes) -> None:
    toolkit = modules.Toolkit("tensorrt", FakeTensorRT("tensorrt"))
    builder = EngineBuilder(toolkit, Messages())
    assert builder.build([], Limits(), given, Phases()) == b"plan with " + used
    assert builder.timing_cache() == used + b"+"


def test_the_full_module_has_no_other_gpus() -> None:
    toolkit = modules.Toolkit("tensorrt", FakeTensorRT("tensorrt"))
    builder = EngineBuilder(toolkit, Messages())
    with pytest.raises(CommandFailed, match="--compute-capability is for tensorrt_rtx"):
        builder.build([], Limits(capabilities=("8.9",)), None, Phases())

"""A model's files are imported as they are, whatever byte code there is of them."""

from __future__ import annotations

import importlib
import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.worker.backends.source_files import import_file, import_sources_below


@pytest.fixture(autouse=True)
def interpreter_as_before() -> Iterator[None]:
    path, hooks, modules = list(sys.path), list(sys.path_hooks), set(sys.modules)
    yield
    sys.path[:], sys.path_hooks[:] = path, hooks
    sys.path_importer_cache.clear()
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(path: Path, value: int) -> None:
    """A module that differs in nothing that Python compares: same size, same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"VALUE = {value}\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))


def replace_after_compiling(path: Path) -> None:
    write(path, 1)
    py_compile.compile(str(path))
    write(path, 2)


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    replace_after_compiling(path)
    module = import_file(str(path), "naiad_test_model")
    assert module is not None
    assert module.VALUE == 2
    assert sys.modules["naiad_test_model"] is module


@pytest.mark.parametrize("name", ["naiad_test_helper", "naiad_test_package.inner"])
def test_a_module_beside_the_model_is_read_again(tmp_path: Path, name: str) -> None:
    path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
    replace_after_compiling(path)
    sys.path.append(str(tmp_path))
    import_sources_below(str(tmp_path))
    assert importlib.import_module(name).VALUE == 2


def test_nothing_is_written_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(tmp_path / "naiad_test_beside.py", 1)
    sys.path.append(str(tmp_path))
    import_sources_below(str(tmp_path))
    importlib.import_module("naiad_test_beside")
    import_file(str(tmp_path / "naiad_test_beside.py"), "naiad_test_model")
    assert os.listdir(tmp_path) == ["naiad_test_beside.py"]


def test_other_directories_are_imported_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(tmp_path / "elsewhere" / "naiad_test_other.py", 1)
    sys.path.append(str(tmp_path / "elsewhere"))
    import_sources_below(str(tmp_path / "model"))
    assert importlib.import_module("naiad_test_other").VALUE == 1
    assert (tmp_path / "elsewhere" / "__pycache__").is_dir()


def test_a_module_that_raises_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("raise ValueError('no')")
    with pytest.raises(ValueError, match="no"):
        import_file(str(path), "naiad_test_model")
    assert "naiad_test_model" not in sys.modules


def test_a_file_that_is_no_source_is_none(tmp_path: Path) -> None:
    assert import_file(str(tmp_path / "model.txt"), "naiad_test_model") is None

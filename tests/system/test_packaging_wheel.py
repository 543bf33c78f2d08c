"""sdist → wheel: every module and data file arrives, nothing else does.

Backends differ in whether they follow the links of src/naiad, and some lose files silently.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMPONENTS = (
    "protocol",
    "shm",
    "config",
    "broker",
    "worker",
    "client",
    "gateway",
    "metrics",
    "cli",
    "testing",
)
DATA_SUFFIXES = (".proto", ".typed", ".pbtxt", ".txt", ".html", ".css", ".js")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel built from the unpacked sdist. Needs no network."""
    folder = tmp_path_factory.mktemp("build")
    tree = folder / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout.decode().split("\0")  # fmt: skip
    for name in filter(None, listed):
        source, target = ROOT / name, tree / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    build(tree, "build_sdist", folder)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        # Python 3.11.4 brought the filter; a distribution's 3.11 may be older.
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder / "unpacked", **safely)
    (unpacked,) = (folder / "unpacked").iterdir()
    build(unpacked, "build_wheel", folder)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def build(tree: Path, hook: str, target: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.{hook}({str(target)!r})"
    plain = {**os.environ, "NAIAD_COMPILE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=plain, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]


def sources() -> set[str]:
    """Every file that belongs into the wheel, by its name there."""
    files = {"naiad/__init__.py", "naiad/__main__.py", "naiad/py.typed"}
    files |= {"naiad/compiled.py", "naiad/_compiled/__init__.py"}
    for component in COMPONENTS:
        for path in (ROOT / component).rglob("*"):
            is_ours = path.suffix == ".py" or path.suffix in DATA_SUFFIXES
            if path.is_file() and is_ours and "__pycache__" not in path.parts:
                files.add(f"naiad/{path.relative_to(ROOT)}")
    return files


def test_the_wheel_holds_exactly_the_sources(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == sources()


def test_the_sdist_brings_what_people_need_besides_the_code(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"supervisord.conf", "CHANGELOG.md", "README.md", "tests/conftest.py"} <= names
    assert "model_repository/identity/config.pbtxt" in names
    assert not [name for name in names if name.endswith((".pyc", ".onnx"))]


def test_the_wheel_runs(built: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(tmp_path)
        entry = wheel.read(next(n for n in wheel.namelist() if n.endswith("entry_points.txt")))
    assert b"naiad = naiad.cli.main:main" in entry
    run = subprocess.run(
        [sys.executable, "-c", "from naiad.cli.main import main; raise SystemExit(main(['-V']))"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "naiad 0.1.0 (plain Python)\n")


def test_the_program_tritonserver_comes_with_its_extra_alone(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """pip installs a distribution's scripts whatever extras were asked for."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "packaging" / "tritonserver", tree)
    build(tree, "build_wheel", tmp_path)
    (script,) = tmp_path.glob("*.whl")
    assert "tritonserver" not in said(built[1], "entry_points.txt")
    assert "tritonserver = naiad.cli.tritonserver:main" in said(script, "entry_points.txt")
    assert "Requires-Dist: naiad\n" in said(script, "METADATA")
    wanted = re.compile(r'^Requires-Dist: naiad-tritonserver ?; ?extra == "tritonserver"$', re.M)
    assert wanted.search(said(built[1], "METADATA"))


def said(wheel: Path, name: str) -> str:
    """A file of the wheel's own description."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (one for one in archive.namelist() if one.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()

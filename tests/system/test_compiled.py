"""Compiled modules: built by setup.py, used when they belong to the sources, else left alone.

Compiles two small modules of a copy of the sources, as `make compile` does with all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMPILE_SECONDS_MAX = 180
SMALL = """
import setup
setup.HOT = {"protocol": "errors datatypes"}
setup.GROUPS = {"naiad_small": ("protocol",)}
setup.main()
"""
WHERE = """
import naiad.protocol.datatypes as one, naiad.protocol.checks as other
from naiad.compiled import is_compiled
print(is_compiled(), one.__file__.rsplit(".", 1)[1], other.__file__.rsplit(".", 1)[1])
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("compiled")
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, tree / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "sources.*")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored)  # follows the links
    run = subprocess.run(
        [sys.executable, "-c", SMALL, "build_ext", "--inplace"],
        cwd=tree, env={**os.environ, "NAIAD_COMPILE": "1"},
        capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    if "installed as plain Python" in run.stderr:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    return tree


def where(tree: Path, **environment: str) -> str:
    """What a fresh interpreter imports."""
    run = subprocess.run(
        [sys.executable, "-c", WHERE], cwd=tree, env={"PYTHONPATH": "src", **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return run.stdout.strip()


def test_compiled_modules_are_used_beside_others_that_are_not(tree: Path) -> None:
    assert where(tree) == "True so py"


def test_a_switch_asks_for_the_sources(tree: Path) -> None:
    assert where(tree, NAIAD_COMPILED="0") == "False py py"


def test_one_edited_source_is_enough_to_run_them_all(tree: Path) -> None:
    edited = tree / "src" / "naiad" / "protocol" / "errors.py"
    text = edited.read_text()
    edited.write_text(text + "\n# an edit\n")
    assert where(tree) == "False py py"
    edited.write_text(text)
    assert where(tree) == "True so py"


def test_without_a_compiler_it_is_plain_python(tree: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SMALL, "build_ext", "--build-lib", "elsewhere"],
        cwd=tree, env={"NAIAD_COMPILE": "1", "PATH": "/nowhere", "CC": "no-such-compiler"},
        capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert "plain Python: there is no C compiler (no-such-compiler)" in run.stderr
    assert not (tree / "elsewhere").exists()

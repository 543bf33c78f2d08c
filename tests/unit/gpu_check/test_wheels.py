"""Wheels of a folder, imported without pip."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from gpu_checks import wheels

HERE = f"cp{sys.version_info[0]}{sys.version_info[1]}"
LATER = f"cp{sys.version_info[0]}{sys.version_info[1] + 1}"


@pytest.mark.parametrize(
    ("name", "suits"),
    [
        (f"a-1-{HERE}-{HERE}-manylinux_2_28_x86_64.whl", True),
        (f"a-1-{HERE}-none-manylinux_2_28_x86_64.whl", True),
        (f"a-1-{LATER}-{LATER}-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp27-cp27mu-manylinux1_x86_64.whl", False),
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp38-abi3-manylinux2014_x86_64.whl", True),
        (f"a-1-{LATER}-abi3-manylinux2014_x86_64.whl", False),
        ("a-1-2-py3-none-any.whl", True),
        ("nonsense.whl", False),
    ],
)
def test_which_suit_this_python(name: str, suits: bool) -> None:
    assert wheels.suits_this_python(name) is suits


def test_what_suits_is_unpacked(tmp_path: Path) -> None:
    for name in ("one-1-py3-none-any.whl", f"two-1-{LATER}-{LATER}-any.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"{name[:3]}/__init__.py", "")
    (tmp_path / "notes.txt").touch()
    target = tmp_path / "site"
    assert wheels.unpack(tmp_path, target) == ["one-1-py3-none-any.whl"]
    assert [path.name for path in target.iterdir()] == ["one"]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        wheels.unpack(tmp_path / "nowhere", tmp_path)


def test_none_that_suits_and_none_that_is_a_wheel(tmp_path: Path) -> None:
    (tmp_path / f"two-1-{LATER}-{LATER}-any.whl").touch()
    with pytest.raises(ValueError, match=r"no wheel for Python 3.* among 1"):
        wheels.unpack(tmp_path, tmp_path / "site")
    (tmp_path / "one-1-py3-none-any.whl").write_text("<html>not found</html>")
    with pytest.raises(ValueError, match=r"one-1-py3-none-any.whl: .*; download it again"):
        wheels.unpack(tmp_path, tmp_path / "site")

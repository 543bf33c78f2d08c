"""A fingerprint changes when a model's files do, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from naiad.config import fingerprint as module
from naiad.config.fingerprint import fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text("a")
    (tmp_path / "config.pbtxt").write_text("b")
    return tmp_path


def digest(model: Path) -> str:
    found = fingerprint(str(model))
    assert found.is_whole
    return found.digest


def test_the_same_files_give_the_same_digest(model: Path) -> None:
    assert digest(model) == digest(model)


def test_changes_are_seen(model: Path) -> None:
    seen = {digest(model)}
    (model / "1" / "model.py").write_text("ab")
    seen.add(digest(model))
    (model / "2").mkdir()
    seen.add(digest(model))
    (model / "2" / "x").write_text("")
    seen.add(digest(model))
    (model / "1" / "model.py").unlink()
    seen.add(digest(model))

    assert len(seen) == 5


def test_an_older_file_of_the_same_size_is_seen(model: Path) -> None:
    before = digest(model)
    os.utime(model / "config.pbtxt", ns=(0, 0))

    assert digest(model) != before


def test_byte_code_that_python_writes_is_not(model: Path) -> None:
    before = digest(model)
    (model / "1" / "__pycache__").mkdir()
    (model / "1" / "__pycache__" / "model.pyc").write_text("x")

    assert digest(model) == before


def test_link_loops_end_and_links_to_nothing_are_passed_over(model: Path) -> None:
    (model / "1" / "loop").symlink_to(model)
    (model / "1" / "nothing").symlink_to(model / "absent")

    assert digest(model)


def test_more_files_than_the_limit_are_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 2)

    assert not fingerprint(str(model)).is_whole

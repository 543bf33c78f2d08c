"""What is named on the command line and cannot be used is said before any step is taken."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gpu_checks.arguments import parsed
from gpu_checks.main import USAGE

NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parsed(arguments)
    assert ended.value.code == USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere/rows", "cannot be written (No such file or directory)"),
        ("folder", "cannot be written (Is a directory)"),
        ("file/rows", "cannot be written (Not a directory)"),
    ],
)
def test_no_place_for_the_rows(
    tmp_path: Path, place: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert f"--out: {tmp_path / place}: {said}" in refusal(capsys, "--out", str(tmp_path / place))


def test_a_place_for_the_rows_is_left_as_it_was(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("old")
    for path in (there, new):
        assert parsed(["--out", str(path)]).out == path
    assert there.read_text() == "old"
    assert not new.exists()


def test_a_link_to_a_place_for_the_rows_stays(tmp_path: Path) -> None:
    """Whatever it leads to is not there either, afterwards."""
    link, between = tmp_path / "link", tmp_path / "between"
    link.symlink_to(between)
    between.symlink_to("rows")
    assert parsed(["--out", str(link)]).out == link
    assert link.is_symlink()
    assert between.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["between", "link"]


def test_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, empty = tmp_path / "a.plan", tmp_path / "b.plan"
    plan.write_bytes(b"plan")
    empty.touch()
    assert "is empty, expected a TensorRT plan" in refusal(capsys, "--plan", str(empty))
    assert "(Is a directory)" in refusal(capsys, "--plan", str(tmp_path))
    arrays = tmp_path / "a.plan.npz"
    arrays.write_text("x = 1")
    assert "a.plan.npz beside it is no .npz file" in refusal(capsys, "--plan", str(plan))
    np.savez(arrays, x=np.ones(1))
    assert parsed(["--plan", str(plan)]).plan == [plan]
    said = refusal(capsys, "--plan", str(plan), "--only", "ipc,rates")
    assert "--plan: needs the step plans, which --only leaves out" in said


@NOT_ROOT
def test_a_plan_without_the_right_to_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "a.plan"
    plan.write_bytes(b"plan")
    plan.chmod(0)
    assert "cannot be read (Permission denied)" in refusal(capsys, "--plan", str(plan))

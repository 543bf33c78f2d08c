"""Label files become the names of classes; what is wrong with one is a fault of its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.config import labels, repository
from naiad.config.labels import read_labels
from naiad.config.model import ModelConfig
from naiad.config.repository import scan
from support.models import add_echo

OUTPUT = {"name": "O", "data_type": "TYPE_FP32", "dims": [3], "label_filename": "l.txt"}
CONFIG = ModelConfig.from_json({"name": "m", "output": [OUTPUT, {**OUTPUT, "name": "P"}]})


def test_one_label_a_line(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes("a\r\ntwo words\n\ngrün\n".encode() + b"\xff")
    found, faults = read_labels(CONFIG, str(tmp_path))
    assert faults == []
    assert found["O"] == ("a", "two words", "", "grün", "�")
    assert found.keys() == {"O", "P"}


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, faults = read_labels(CONFIG, str(tmp_path))
    assert (found, len(faults)) == ({}, 2)
    assert '"l.txt" is not a file' in str(faults[0])
    monkeypatch.setattr(labels, "LABELS_BYTES_MAX", 3)
    (tmp_path / "l.txt").write_text("long")
    assert '"l.txt" has more than 3 bytes' in str(read_labels(CONFIG, str(tmp_path))[1][0])


def test_too_many_labels_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        config = add_echo(tmp_path, name) / "config.pbtxt"
        text = config.read_text().replace("output {", 'output { label_filename: "l.txt"')
        config.write_text(text)
        (tmp_path / name / "l.txt").write_text("one\ntwo")
    first, second = scan([str(tmp_path)]).models
    assert (first.faults, second.faults) == ((), ())
    assert first.to_json()["labels"] == {"OUTPUT0": ["one", "two"]}
    monkeypatch.setattr(repository, "LABELS_BYTES_MAX", 10)
    first, second = scan([str(tmp_path)]).models
    assert first.faults == ()
    assert "are larger than 10 bytes together" in str(second.faults[0])
    assert second.labels == {}

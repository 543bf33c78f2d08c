"""The table of models at the start, as people and Triton's tools look for it."""

from __future__ import annotations

import io
from typing import Any

import pytest

from naiad.cli.startup import failed_models, models_table, outcome

MODELS: list[dict[str, Any]] = [
    {"name": "good", "version": 1, "state": "READY", "instances": 2, "reason": ""},
    {"name": "bad", "version": None, "state": "UNAVAILABLE", "reason": "no luck\x1b"},
    {"name": "good", "version": 12, "state": "READY", "instances": 1, "reason": "a failed reload"},
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_it_is_the_box_of_triton_s_log() -> None:
    assert models_table(MODELS, io.StringIO()).splitlines() == [
        "+-------+---------+--------------------------+",
        "| Model | Version | Status                   |",
        "+-------+---------+--------------------------+",
        "| bad   | -       | UNAVAILABLE: no luck\\x1b |",
        "| good  | 1       | READY                    |",
        "| good  | 12      | READY                    |",
        "+-------+---------+--------------------------+",
    ]
    assert models_table([], io.StringIO()).splitlines()[1] == "| Model | Version | Status |"


def test_on_a_terminal_it_is_a_coloured_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = models_table(MODELS, Terminal())
    assert "\x1b[" in shown
    assert "INSTANCES" in shown
    assert "+---" not in shown


def test_the_outcome_counts_models_as_readiness_does_and_not_versions() -> None:
    def status(*rows: tuple[str, int, str, str]) -> dict[str, Any]:
        keys = ("name", "version", "state", "reason")
        names = {row[0] for row in rows}
        models = [dict(zip(keys, row, strict=True)) for row in rows]
        return {"models": models, "server": {"models": {"known": len(names)}}}

    good = [("good", 1, "READY", ""), ("good", 12, "READY", "")]
    bad = [("bad", 1, "UNAVAILABLE", "no luck"), ("bad", 2, "UNAVAILABLE", "no luck")]
    gone = [("gone", 1, "UNAVAILABLE", "unloaded")]

    assert outcome(status(*good, *bad, *gone)) == "1 of 3 models failed"
    assert failed_models(status(*good, *bad, *gone)) == ["bad"]
    assert outcome(status(*good, *gone)) == "ready"

"""How rows are judged, travel and are shown."""

from __future__ import annotations

import builtins
import io
import json
from typing import Any

import pytest

from gpu_checks import rows
from gpu_checks.rows import Row


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (rows.at_least("a", 0.9, 0.9, "x"), "pass"),
        (rows.at_least("a", 0.899, 0.9, "x"), "fail"),
        (rows.at_most("a", 1.3, 1.3, "x"), "pass"),
        (rows.at_most("a", 1.31, 1.3, "x"), "fail"),
        (rows.at_least("a", float("nan"), 0.9, "x"), "fail"),
        (rows.at_most("a", float("nan"), 0.9, "x"), "fail"),
        (rows.holds("a", True, "yes", reason="never said"), "pass"),
        (rows.holds("a", False, "no", reason="so"), "fail"),
        (rows.told("a", 3, "us"), "pass"),
        (rows.skipped("a", "why"), "skipped"),
        (rows.failed("a", "why"), "fail"),
    ],
)
def test_verdicts(row: Row, verdict: str) -> None:
    assert row.verdict == verdict


def test_a_reason_is_given_only_where_something_is_wrong() -> None:
    assert rows.holds("a", True, "yes", reason="so").reason == ""
    assert rows.holds("a", False, "no", reason="so").reason == "so"


def test_the_bar_and_the_number_are_in_the_row() -> None:
    row = rows.at_least("H2D", 0.95, 0.9, "x", "50 GB/s")
    assert (row.measured, row.bar, row.value) == ("0.95 x (50 GB/s)", ">= 0.9 x", 0.95)
    assert rows.told("a", 123456.7, "us").measured == "123457 us"


def test_a_row_travels_as_json() -> None:
    row = rows.at_most("µs", 2, 3, "us")
    assert rows.from_json(row.to_json()) == row


def test_long_reasons_keep_both_ends() -> None:
    text = "first " + "x " * 2000 + "last"
    short = rows.failed("a", text).reason
    assert len(short) < rows.REASON_CHARS_MAX + 10
    assert short.startswith("first x")
    assert short.endswith("x last")


SHOWN = [
    Row("of [red]", "1 x", ">= 2 x", "fail", "why not", 1.0, "rates"),
    Row("another", "-", "-", "skipped", "no such thing", None, "server"),
]


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    rows.show(SHOWN, "title", out)
    check_table(out.getvalue())
    assert "─" in out.getvalue()


def test_the_table_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without_rich(name: str, *arguments: Any) -> Any:
        if name.startswith("rich"):
            raise ModuleNotFoundError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    out = io.StringIO()
    rows.show(SHOWN, "title", out)
    check_table(out.getvalue())
    assert "─" not in out.getvalue()


def check_table(text: str) -> None:
    assert text.startswith("title")
    words = ["rates", "of [red]", "1 x", ">= 2 x", "fail", "why not", "another", "no such thing"]
    assert [word for word in words if word not in text] == []


def test_json_is_plain() -> None:
    assert json.loads(SHOWN[1].to_json())["value"] is None

"""A row of the table: what was looked at, what came, what was expected, and the verdict.

Rows travel as JSON from the process of a step to the script. Judges nothing by itself: each row is
made by the function that says what its bar is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Final, TextIO

PASS: Final = "pass"
FAIL: Final = "fail"
SKIPPED: Final = "skipped"
NO_BAR: Final = "-"

HEAD: Final = ("step", "what", "measured", "bar", "verdict")
STYLE: Final = {PASS: "", FAIL: "bold red", SKIPPED: "yellow"}
REASON_CHARS_MAX: Final = 600


@dataclass(frozen=True, slots=True)
class Row:
    """`value` is the number behind `measured`, where there is one, for whoever reads the JSON."""

    what: str
    measured: str
    bar: str
    verdict: str
    reason: str = ""
    value: float | None = None
    step: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def from_json(line: str) -> Row:
    return Row(**json.loads(line))


def holds(what: str, is_so: bool, measured: str, *, bar: str = "yes", reason: str = "") -> Row:
    """A claim that is true or not."""
    return Row(what, measured, bar, PASS if is_so else FAIL, "" if is_so else reason)


def at_least(what: str, value: float, least: float, unit: str, note: str = "") -> Row:
    verdict = PASS if value >= least else FAIL
    return Row(what, _shown(value, unit, note), f">= {least:g} {unit}".rstrip(), verdict, "", value)


def at_most(what: str, value: float, most: float, unit: str, note: str = "") -> Row:
    verdict = PASS if value <= most else FAIL
    return Row(what, _shown(value, unit, note), f"<= {most:g} {unit}".rstrip(), verdict, "", value)


def told(what: str, value: float, unit: str, note: str = "") -> Row:
    """A figure that nothing is held against."""
    return Row(what, _shown(value, unit, note), NO_BAR, PASS, "", value)


def skipped(what: str, reason: str) -> Row:
    return Row(what, NO_BAR, NO_BAR, SKIPPED, shortened(reason))


def failed(what: str, reason: str) -> Row:
    return Row(what, NO_BAR, NO_BAR, FAIL, shortened(reason))


def shortened(text: str) -> str:
    words = " ".join(text.split())
    if len(words) <= REASON_CHARS_MAX:
        return words
    return words[: REASON_CHARS_MAX // 2] + " ... " + words[-REASON_CHARS_MAX // 2 :]


def _shown(value: float, unit: str, note: str) -> str:
    number = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{number} {unit}".rstrip() + (f" ({note})" if note else "")


def show(rows: Sequence[Row], title: str, out: TextIO) -> None:
    """The table: by rich where it is installed, else in plain columns."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        _show_plainly(rows, title, out)
        return
    table = Table(*HEAD, title=title, title_justify="left")
    for row in rows:
        measured = f"{row.measured}\n{row.reason}" if row.reason else row.measured
        cells = (row.step, row.what, measured, row.bar, row.verdict)
        table.add_row(*map(_escaped, cells), style=STYLE[row.verdict])
    # Not to `out` itself: rich ends the process where that cannot be written.
    made = StringIO()
    is_terminal = out.isatty()
    console = Console(file=made, width=None if is_terminal else 160, force_terminal=is_terminal)
    console.print(table)
    out.write(made.getvalue())


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _show_plainly(rows: Sequence[Row], title: str, out: TextIO) -> None:
    lines = [HEAD, *((r.step, r.what, r.measured, r.bar, r.verdict) for r in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    out.write(f"{title}\n")
    reasons = ["", *(row.reason for row in rows)]
    for line, reason in zip(lines, reasons, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        out.write("  ".join(cells).rstrip() + "\n")
        if reason:
            out.write(f"    {reason}\n")

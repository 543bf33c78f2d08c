"""How results are said: bars, their verdicts, and rows of JSON.

Every benchmark prints Markdown: its table, which docs/performance.md shows as it is, and a list
item for each bar (a row of the first table there) that begins with REACHED, MISSED or INFORMATION.
It ends with exit code 1 when a bar was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

Row = dict[str, Any]

REACHED: Final = "reached"
MISSED: Final = "MISSED"
INFORMATION: Final = "for information"


def rounds_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark that is measured in rounds."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--others-max", type=float, default=0.3, help="in cores, before a round")
    parser.add_argument("--json", help="append every figure to this file")
    return parser


class Verdict(NamedTuple):
    """One bar over all rounds: the median decides, and most rounds should agree."""

    title: str
    sign: str
    """What the figure has to be: ≥ or ≤ the limit."""
    limit: float | None
    """None: for information, always reached."""
    values: list[float]
    unit: str = "×"

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def is_reached(self) -> bool:
        return self._is_met(self.median)

    def _is_met(self, value: float) -> bool:
        if self.limit is None:
            return True
        return value >= self.limit if self.sign == "≥" else value <= self.limit

    def __str__(self) -> str:
        values = [f"{value:.3g}" for value in (self.median, min(self.values), max(self.values))]
        found = f"{self.title}: **{values[0]}{self.unit}** ({values[1]}-{values[2]})"
        if self.limit is None:
            return f"- {INFORMATION}: {found}"
        inside = sum(map(self._is_met, self.values))
        return (
            f"- {REACHED if self.is_reached else MISSED}: {found}, bar {self.sign}"
            f" {self.limit:g}{self.unit}, {inside} of {len(self.values)} on its side"
        )


def spread(values: Sequence[float], form: Callable[[float], str] = "{:.0f}".format) -> str:
    """Median, minimum and maximum."""
    return f"{form(statistics.median(values))} ({form(min(values))}-{form(max(values))})"


def append_rows(path: str | os.PathLike[str], rows: Sequence[Row]) -> None:
    """One object per line."""
    with open(path, "a") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")

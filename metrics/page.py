"""The text that Prometheus reads (exposition format 0.0.4), line by line. Pure.

Not prometheus_client's writer: that names every counter `_total`, which Triton's are not, and takes
twenty times as long, on a machine that has models to run. Its parser is the judge in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from naiad.metrics.families import FAMILIES, Family, Kind

CONTENT_TYPE = "text/plain; charset=utf-8"
"""As Triton sends it."""

Number = int | float


class Page:
    """Samples by family. Labels are text (`labels_of`), made once where many samples share them."""

    def __init__(self) -> None:
        self._lines: dict[Family, list[str]] = {family: [] for family in FAMILIES}

    def add(self, family: Family, labels: str, value: Number) -> None:
        """One sample of a counter or gauge."""
        name = f"{family.name}{{{labels}}}" if labels else family.name
        self._lines[family].append(f"{name} {value!r}\n")

    def add_histogram(
        self,
        family: Family,
        labels: str,
        bounds: Sequence[str],
        counts: Sequence[int],
        total: Number,
    ) -> None:
        """One histogram. `bounds` are the upper ones as text, `counts` those up to each and, last,
        beyond them all; `total` is the sum of what was observed."""
        assert family.kind is Kind.HISTOGRAM
        assert len(counts) == len(bounds) + 1
        name = family.name
        lines = self._lines[family]
        count = 0
        for bound, count in zip((*bounds, "+Inf"), accumulate(counts), strict=True):
            lines.append(f'{name}_bucket{{le="{bound}",{labels}}} {count}\n')
        lines.append(f"{name}_sum{{{labels}}} {total!r}\n{name}_count{{{labels}}} {count}\n")

    def text(self) -> bytes:
        """All of it; families without a sample are left out."""
        parts = []
        for family, lines in self._lines.items():
            if lines:
                parts.append(f"# HELP {family.name} {family.help}\n")
                parts.append(f"# TYPE {family.name} {family.kind}\n")
                parts += lines
        return "".join(parts).encode()


def labels_of(names: Sequence[str], *values: str) -> str:
    """Names with values, escaped; names are in alphabetical order, as Triton writes them."""
    return ",".join(
        f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)
    )


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value

"""Tables for people: rich on a terminal, aligned plain text into a pipe or a file."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from naiad.config.names import visible

STYLES: Final = {
    "READY": "green",
    "BUSY": "green",
    "LOADING": "yellow",
    "WAITING": "yellow",
    "BACKOFF": "yellow",
    "UNAVAILABLE": "red",
    "FATAL": "red",
    "LOST": "red",
}
"""Words that are coloured when they are a whole cell."""


def is_terminal(stream: TextIO) -> bool:
    """Whether colours are welcome: a terminal, and nobody said NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], stream: TextIO = sys.stdout
) -> str:
    """The table as text for `stream`, without a newline at the end."""
    cells = [["" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    if is_terminal(stream):
        return _rich(header, cells)
    return _plain(header, cells)


def _plain(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def boxed(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The table in a box of + - and |, as Triton writes its tables into its log."""
    cells = [[visible(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = "".join(f"+{'-' * (width + 2)}" for width in widths) + "+"
    lines = [
        "".join(f"| {cell.ljust(width)} " for cell, width in zip(row, widths, strict=True)) + "|"
        for row in cells
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _rich(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(
        *header, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for row in rows:
        view.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    output = io.StringIO()
    width = shutil.get_terminal_size().columns
    Console(file=output, force_terminal=True, width=width).print(view)
    return output.getvalue().strip("\n")

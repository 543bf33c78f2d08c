"""How a line of the log begins: when, and how grave, in one of the formats of `log_levels`."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from naiad.config.log_levels import NUMBERS

LETTERS: Final = {"error": "E", "warning": "W", "info": "I", "verbose": "I"}
"""As in Triton, whose verbose lines say I too."""
_LEVEL: Final = re.compile(r"\b(ERROR|WARNING|INFO|error|warning)\b:?")
LEVEL_CHARS_MAX: Final = 80
"""How far from its start a line says how grave it is."""
_CHILD: Final = re.compile(r"^[^\s\[]+\[(\d+)\] ")
OWN_TIME: Final = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z|[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+) "
)
"""What `start` writes: a process's own, for when nobody else writes the time."""


def start(style: str, level: str, pid: int) -> str:
    """What stands before a line written now, with a blank at its end."""
    now = datetime.fromtimestamp(time.time(), UTC)
    if style == "default":
        return f"{LETTERS[level]}{now:%m%d %H:%M:%S.%f} {pid} "
    return f"{now.isoformat(timespec='milliseconds')[:23]}Z "


def level_of(text: str) -> str:
    """How grave a child's line is, by its own words."""
    found = _LEVEL.search(text, 0, LEVEL_CHARS_MAX)
    level = found[1].lower() if found else "info"
    return level if level in NUMBERS else "info"


def pid_of(text: str, own: int) -> int:
    """Whose line this is: a child's says it, any other is our own."""
    found = _CHILD.match(text)
    return int(found[1]) if found else own

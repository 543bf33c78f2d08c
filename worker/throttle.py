"""A worker that keeps dying before its broker took it waits before it tries again.

supervisord restarts at once and gives up for ever after a few tries; so the pace is kept here, in
one small file per slot name. A welcome removes it: later deaths are counted by the broker, whose
crash budget knows which model they were. A life longer than YOUNG_S starts anew.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Final

YOUNG_S: Final = 3.0
"""A process that was started again sooner than this after its start died young."""
FREE_DEATHS: Final = 2
WAIT_S: Final = 0.5
WAIT_S_MAX: Final = 10.0


def deaths_in_a_row(last_start: float, deaths: int, now: float) -> int:
    """Young deaths up to now, given the last start and how many there were then.

    Both times are seconds of one clock; a start in the future is one of before a reboot.
    """
    return deaths + 1 if 0 <= now - last_start < YOUNG_S else 0


def wait_s(deaths: int) -> float:
    """How long to wait before the next start: nothing at first, then doubling up to a limit."""
    excess = deaths - FREE_DEATHS - 1
    return 0.0 if excess < 0 else min(WAIT_S * 2.0 ** min(excess, 16), WAIT_S_MAX)


class StartFile:
    """(last start, young deaths before it) of one slot name; best effort throughout."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> tuple[float, int] | None:
        try:
            with open(self._path) as file:
                start, deaths = json.load(file)
            return float(start), int(deaths)
        except (OSError, ValueError, TypeError):
            return None

    def write(self, start: float, deaths: int) -> None:
        with suppress(OSError):
            temporary = f"{self._path}.{os.getpid()}"
            with open(temporary, "w") as file:
                json.dump([start, deaths], file)
            os.rename(temporary, self._path)

    def clear(self) -> None:
        with suppress(OSError):
            os.unlink(self._path)

"""Seconds that a user gives, as deadlines on the monotonic clock; any length of time is good.

Owns how long "for ever" is: nobody may have to know what poll() or a lock can take.
"""

from __future__ import annotations

import time
from typing import Any, Final

DURATION_S_MAX: Final = 100 * 366 * 24 * 3600
"""Longer waits, infinite ones too, are as long as this: a hundred years."""


def duration_ns(seconds: Any, what: str) -> int:
    """Whole nanoseconds, 0 for negative durations.

    Raises TypeError or ValueError, which name the argument `what`, for what is not a duration.
    """
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        try:
            seconds = float(seconds.__float__())  # of NumPy, a Fraction, ...
        except (AttributeError, TypeError, ValueError):
            raise TypeError(f"{what}: expected seconds as a number, got {seconds!r:.80}") from None
    if seconds != seconds:
        raise ValueError(f"{what}: expected seconds as a number, got nan")
    return int(max(0.0, min(seconds, DURATION_S_MAX)) * 1e9)


def deadline_after(seconds: Any, what: str) -> int:
    """When so many seconds from now are over, on time.monotonic_ns(); 0, never, for None."""
    if seconds is None:
        return 0
    return time.monotonic_ns() + duration_ns(seconds, what) + 1

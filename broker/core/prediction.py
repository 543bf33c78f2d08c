"""When a running batch will end: what lets the next one be sent a hand-over before that moment."""

from __future__ import annotations

from typing import Final

WEIGHT: Final = 0.2
"""Weight of a new observation in the moving averages."""
ROWS_REMEMBERED_MAX: Final = 128
SERIES_NS_MAX: Final = 1_000_000
"""What a series may take, and its first answer wait. A message each way costs all processes
together about 0.65 ms of CPU."""
SERIES_REQUESTS_MAX: Final = 16
SPREADS: Final = 1.3
"""Mean plus 1.3 mean absolute deviations lies near the 90th percentile of a skewed delay."""


class Prediction:
    """Moving averages of one worker: busy time per batch size, and the hand-over around it.

    The hand-over is what passes between sending a batch to an idle worker and having its results,
    less the time the worker was busy: two messages and two wake-ups. The lead is that and the time
    that its inputs took to where it executes (a GPU's memory), which a batch sent ahead spends
    beside the running one. All times in nanoseconds.
    """

    __slots__ = ("_busy_ns", "_each_ns", "_input_ns", "_mean_ns", "_spread_ns")

    def __init__(self) -> None:
        self._busy_ns: dict[int, float] = {}
        self._each_ns: float | None = None
        self._input_ns = 0.0
        self._mean_ns = 0.0
        self._spread_ns = 0.0

    def observe(self, rows: int, busy_ns: int, handover_ns: int | None, input_ns: int = 0) -> None:
        """Take in one finished batch, busy after its inputs; `handover_ns`, and what its inputs
        took, only if its worker was idle when it came."""
        known = self._busy_ns.get(rows)
        if known is None and len(self._busy_ns) >= ROWS_REMEMBERED_MAX:
            self._busy_ns.pop(next(iter(self._busy_ns)))
        self._busy_ns[rows] = _followed(known, busy_ns)
        if handover_ns is not None and handover_ns > 0:
            off = handover_ns - self._mean_ns
            self._mean_ns += WEIGHT * off
            self._spread_ns += WEIGHT * (abs(off) - self._spread_ns)
            self._input_ns += WEIGHT * (input_ns - self._input_ns)

    def observe_each(self, ns: int) -> None:
        """What one execution took, of a model that does not batch."""
        self._each_ns = _followed(self._each_ns, ns)

    def series(self) -> int:
        """How many requests may be executed in a row before the first is answered."""
        each_ns = self._each_ns
        if not each_ns:
            return 1
        return max(1, min(SERIES_REQUESTS_MAX, int(SERIES_NS_MAX / each_ns)))

    def busy_ns(self, rows: int) -> int | None:
        """Expected busy time of a batch, or None if none of this size was seen."""
        known = self._busy_ns.get(rows)
        return None if known is None else int(known)

    def handover_ns(self) -> int:
        """About the 90th percentile of the hand-over."""
        return int(self._mean_ns + SPREADS * self._spread_ns)

    def lead_ns(self) -> int:
        """How long before its turn a batch is to be sent."""
        return self.handover_ns() + int(self._input_ns)


def _followed(average: float | None, seen: int) -> float:
    """The moving average with one more observation; the first is all there is."""
    return float(seen) if average is None else average + WEIGHT * (seen - average)

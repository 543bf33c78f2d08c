"""How full the instances of a model are: one number to scale on. Pure; time is an argument.

0 is idle, 1 means that every instance was busy all the time, and what waits is added on top in
batches: 3 means all busy, and two full batches waiting for each instance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

NS: Final = 1_000_000_000
WINDOW_NS: Final = 10 * NS
SPACING_NS: Final = NS
"""Between observations that are kept, however often somebody scrapes."""


class Busy(NamedTuple):
    """An instance: time spent on batches so far, with what the running one has taken."""

    busy_ns: int
    is_executing: bool


class Saturation:
    """Remembers how busy each instance was, for about WINDOW_NS. Of one broker: another one counts
    from zero."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Mapping[int, Busy]]] = deque()
        self._now_ns = 0
        self._now: Mapping[int, Busy] = {}

    def observe(self, now_ns: int, busy: Mapping[int, Busy]) -> None:
        """What every instance of the server has done until now, by its number."""
        is_new = not self._seen or self._seen[-1][0] <= self._now_ns - SPACING_NS
        if self._now_ns and is_new:
            self._seen.append((self._now_ns, self._now))
        while len(self._seen) > 1 and self._seen[1][0] <= now_ns - WINDOW_NS:
            self._seen.popleft()
        self._now_ns, self._now = now_ns, busy

    def of(self, instances: list[int], *, pending: int, rows_max: int) -> float:
        """Of one model: `instances` that serve, requests that wait, and rows of a full batch."""
        shares = [self._share(one) for one in instances]
        busy = sum(shares) / len(shares) if shares else 0.0
        return busy + pending / (rows_max * max(1, len(instances)))

    def _share(self, instance: int) -> float:
        now = self._now[instance]
        if not self._seen:
            return float(now.is_executing)
        then_ns, then = self._seen[0]
        before_ns = then[instance].busy_ns if instance in then else 0
        passed_ns = self._now_ns - then_ns
        if passed_ns <= 0:
            return float(now.is_executing)
        return min(1.0, max(0.0, (now.busy_ns - before_ns) / passed_ns))

"""Deadlines of queued requests: O(1) to set and to cancel, the next one known at any time.

Most models use one or two timeouts, so requests with the same timeout expire in the order they
came: one OrderedDict (a lane) per distinct timeout. Values beyond LANES_MAX share a heap.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final, Protocol

LANES_MAX: Final = 32
NEVER_NS: Final = 2**63 - 1


class Timed(Protocol):
    number: int
    deadline_ns: int
    timeout_ns: int


class Deadlines:
    """Ordered set of things with `deadline_ns` (0: none) and `timeout_ns` (which lane)."""

    __slots__ = ("_heap", "_in_heap", "_lanes", "_not_before_ns")

    def __init__(self) -> None:
        self._lanes: dict[int, OrderedDict[int, Timed]] = {}
        self._heap: list[tuple[int, int]] = []
        self._in_heap: dict[int, Timed] = {}
        self._not_before_ns = NEVER_NS
        """Nothing is due before this moment; perhaps not then either, when that was discarded."""

    @property
    def is_active(self) -> bool:
        """Whether anything waits here at all."""
        return bool(self._lanes or self._in_heap)

    def __len__(self) -> int:
        return len(self._in_heap) + sum(len(lane) for lane in self._lanes.values())

    def add(self, item: Timed) -> None:
        if item.deadline_ns < self._not_before_ns:
            self._not_before_ns = item.deadline_ns
        lane = self._lanes.get(item.timeout_ns)
        if lane is None and len(self._lanes) < LANES_MAX:
            lane = self._lanes[item.timeout_ns] = OrderedDict()
        if lane is not None and (not lane or _last(lane).deadline_ns <= item.deadline_ns):
            lane[item.number] = item
            return
        # An odd value, or one that came back after a worker's death and is older than its lane.
        self._in_heap[item.number] = item
        heapq.heappush(self._heap, (item.deadline_ns, item.number))

    def discard(self, item: Timed) -> None:
        lane = self._lanes.get(item.timeout_ns)
        if lane is not None and lane.pop(item.number, None) is not None:
            if not lane:
                del self._lanes[item.timeout_ns]
            return
        if self._in_heap.pop(item.number, None) is not None and len(self._heap) > 64:
            self._compact()

    def next_ns(self) -> int:
        """The earliest deadline, or NEVER_NS."""
        if not self.is_active:
            return NEVER_NS
        earliest = NEVER_NS
        for lane in self._lanes.values():
            head = next(iter(lane.values())).deadline_ns
            if head < earliest:
                earliest = head
        while self._heap and self._heap[0][1] not in self._in_heap:
            heapq.heappop(self._heap)
        if self._heap and self._heap[0][0] < earliest:
            earliest = self._heap[0][0]
        return earliest

    def pop_due(self, now_ns: int) -> list[Timed]:
        """Remove and return everything whose deadline is not after now."""
        due: list[Timed] = []
        if now_ns < self._not_before_ns:
            return due
        for timeout_ns, lane in list(self._lanes.items()):
            while lane:
                item = next(iter(lane.values()))
                if item.deadline_ns > now_ns:
                    break
                del lane[item.number]
                due.append(item)
            if not lane:
                del self._lanes[timeout_ns]
        while self._heap and self._heap[0][0] <= now_ns:
            _, number = heapq.heappop(self._heap)
            waiting = self._in_heap.pop(number, None)
            if waiting is not None:
                due.append(waiting)
        self._not_before_ns = self.next_ns()
        return due

    def _compact(self) -> None:
        if len(self._in_heap) * 2 < len(self._heap):
            self._heap = [(item.deadline_ns, number) for number, item in self._in_heap.items()]
            heapq.heapify(self._heap)


def _last(lane: OrderedDict[int, Timed]) -> Timed:
    return next(reversed(lane.values()))

"""The queue of one model version: its levels (priority, delayed or not), and suspects before all.

What a level holds, and who of it is next, is in lanes. Cancel is O(1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from naiad.broker.core.job import Job
from naiad.broker.core.lanes import Level


class ModelQueue:
    """Everything of one model version that waits for an instance.

    Ranks are 2 * priority, plus 1 for requests that a DELAY policy moved behind their level.
    `suspects` were being executed when a worker died: they run alone, before all others.
    """

    __slots__ = ("_levels", "_order", "count", "suspects")

    def __init__(self) -> None:
        self._levels: dict[int, Level] = {}
        self._order: list[Level] = []
        self.suspects: deque[Job] = deque()
        self.count = 0

    def __len__(self) -> int:
        return self.count

    @property
    def waiting(self) -> int:
        """What people call the queue: also what was sent early to workers that are still busy."""
        return self.count + sum(level.early for level in self._order)

    def level(self, rank: int) -> Level:
        found = self._levels.get(rank)
        if found is None:
            found = self._levels[rank] = Level(rank)
            self._order = sorted(self._levels.values(), key=lambda level: level.rank)
        return found

    def queued_at(self, rank: int) -> int:
        """What max_queue_size counts: waiting, also when a DELAY policy moved it behind, or sent
        early to a worker that is still busy."""
        levels = (self._levels.get(rank), self._levels.get(rank + 1))
        return sum(level.count + level.early for level in levels if level is not None)

    def push(self, job: Job) -> None:
        self.count += 1
        (self._levels.get(job.level) or self.level(job.level)).push(job, front=False)

    def push_front(self, job: Job) -> None:
        self.count += 1
        if job.suspect:
            self.suspects.appendleft(job)
        else:
            self.level(job.level).push(job, front=True)

    def remove(self, job: Job) -> None:
        """It ends unserved, or goes elsewhere."""
        self.count -= 1
        if job.suspect:
            self.suspects.remove(job)
        else:
            self._levels[job.level].remove(job)

    def take(self, job: Job) -> None:
        """It is sent to a worker."""
        self.count -= 1
        if job.suspect:
            self.suspects.remove(job)
        else:
            level = self._levels[job.level]
            if len(level.shares) > 1:
                level.has_turn(job)
            level.remove(job)

    def levels(self) -> list[Level]:
        """Non-empty levels, the most urgent first."""
        return [level for level in self._order if level.count]

    def all_levels(self) -> list[Level]:
        return self._order

    def jobs(self) -> Iterator[Job]:
        yield from self.suspects
        for level in self._order:
            for lane in level.lanes.values():
                yield from lane.jobs()

    def oldest_ns(self) -> int:
        """When the longest waiting request came, or 0."""
        times = [job.enqueued_ns for job in self.suspects]
        times += [level.oldest_ns() for level in self.levels()]
        return min(times, default=0)

    def check_invariants(self) -> None:
        assert self.count == len(self.suspects) + sum(level.count for level in self._order)
        for level in self._order:
            level.check_invariants()

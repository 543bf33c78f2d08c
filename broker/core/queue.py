"""The queue of one model version: its levels (priority, delayed or not), and suspects before all.

What only instances on one GPU can execute has levels of its own. What a level holds, and who of it
is next, is in lanes. Cancel is O(1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from naiad.broker.core.job import ANYWHERE, Job
from naiad.broker.core.lanes import Level, Turns


class ModelQueue:
    """Everything of one model version that waits for an instance.

    Ranks are 2 * priority, plus 1 for requests that a DELAY policy moved behind their level.
    `suspects` were being executed when a worker died: they run alone, before all others.
    """

    __slots__ = ("_apart", "_levels", "_order", "_turns", "count", "suspects")

    def __init__(self) -> None:
        self._levels: dict[int, Level] = {}
        self._apart: dict[tuple[int, int], Level] = {}
        """By rank and GPU."""
        self._turns = Turns()
        self._order: list[Level] = []
        self.suspects: deque[Job] = deque()
        self.count = 0

    def __len__(self) -> int:
        return self.count

    @property
    def waiting(self) -> int:
        """What people call the queue: also what was sent early to workers that are still busy."""
        return self.count + sum(level.early for level in self._order)

    def level(self, rank: int, only_on: int = ANYWHERE) -> Level:
        found = self._found(rank, only_on)
        if found is None:
            found = Level(rank, only_on, self._turns)
            if only_on == ANYWHERE:
                self._levels[rank] = found
            else:
                self._apart[rank, only_on] = found
            levels = (*self._levels.values(), *self._apart.values())
            self._order = sorted(levels, key=lambda level: (level.rank, level.only_on))
        return found

    def level_of(self, job: Job) -> Level:
        """Where it stands, or stood until it was sent early."""
        found = self._levels.get(job.level) if job.only_on == ANYWHERE else None
        return found or self.level(job.level, job.only_on)

    def _found(self, rank: int, only_on: int) -> Level | None:
        if only_on == ANYWHERE:
            return self._levels.get(rank)
        return self._apart.get((rank, only_on))

    def queued_at(self, rank: int, only_on: int = ANYWHERE) -> int:
        """What max_queue_size counts: waiting, also when a DELAY policy moved it behind, or sent
        early to a worker that is still busy; apart for what can be executed on one GPU alone."""
        levels = (self._found(rank, only_on), self._found(rank + 1, only_on))
        return sum(level.count + level.early for level in levels if level is not None)

    def push(self, job: Job) -> None:
        self.count += 1
        self.level_of(job).push(job, front=False)

    def push_front(self, job: Job) -> None:
        self.count += 1
        if job.suspect:
            self.suspects.appendleft(job)
        else:
            self.level_of(job).push(job, front=True)

    def remove(self, job: Job) -> None:
        """It ends unserved, or goes elsewhere."""
        self.count -= 1
        if job.suspect:
            self.suspects.remove(job)
        else:
            self.level_of(job).remove(job)

    def take(self, job: Job, gpu: int = ANYWHERE) -> None:
        """It is sent to a worker, which sees this GPU."""
        self.count -= 1
        if job.suspect:
            self.suspects.remove(job)
            return
        level = self.level_of(job)
        if self._apart:
            turn = self._turns.next()
            for beside in self.levels(gpu):
                if beside.rank == level.rank:
                    beside.has_turn(job.fairness_key, turn)
        elif len(level.shares) > 1:
            level.has_turn(job.fairness_key, self._turns.next())
        level.remove(job)

    def suspect_for(self, gpu: int) -> Job | None:
        """The first that an instance which sees this GPU can execute."""
        for job in self.suspects:
            if gpu == ANYWHERE or job.only_on in (gpu, ANYWHERE):
                return job
        return None

    def count_for(self, gpu: int) -> int:
        """How many jobs of the levels an instance that sees this GPU can execute."""
        return sum(level.count for level in self.levels(gpu))

    def levels(self, gpu: int = ANYWHERE) -> list[Level]:
        """Non-empty ones that an instance which sees this GPU serves, the most urgent first."""
        if not self._apart:
            return [level for level in self._order if level.count]
        return [level for level in self._order if level.count and level.suits(gpu)]

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

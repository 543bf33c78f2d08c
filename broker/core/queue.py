"""The queue of one model version: by level (priority, delayed or not), then by batch key.

Requests of one key may share a batch. Within a level the key whose head waited longest is served
first, so looking past an incompatible head can starve nobody. Cancel is O(1).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator

from naiad.broker.core.job import Job


class Lane:
    """Jobs of one level and one key, in order; `rows` is the sum of theirs."""

    __slots__ = ("jobs", "key", "rows")

    def __init__(self, key: object) -> None:
        self.key = key
        self.jobs: OrderedDict[int, Job] = OrderedDict()
        self.rows = 0

    def head(self) -> Job:
        return next(iter(self.jobs.values()))


class Level:
    """All lanes of one priority. `early` jobs left the lanes but still count as queued."""

    __slots__ = ("_heads", "_notes", "count", "early", "lanes", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lanes: dict[object, Lane] = {}
        self._heads: list[tuple[int, int, int, Lane]] = []
        """(since when, job, note, lane): the note tells two lanes apart that had the same job."""
        self._notes = 0
        self.count = 0
        self.early = 0

    def push(self, job: Job, front: bool) -> None:
        lane = self.lanes.get(job.key)
        if lane is None:
            if len(self.lanes) == 1:
                # Heads are not noted while there is one lane only.
                for alone in self.lanes.values():
                    self._note_head(alone, alone.head())
            lane = self.lanes[job.key] = Lane(job.key)
        lane.jobs[job.number] = job
        if front:
            lane.jobs.move_to_end(job.number, last=False)
        lane.rows += job.rows
        self.count += 1
        if front or len(lane.jobs) == 1:
            self._note_head(lane, job)

    def remove(self, job: Job) -> None:
        lane = self.lanes[job.key]
        del lane.jobs[job.number]
        lane.rows -= job.rows
        self.count -= 1
        if not lane.jobs:
            del self.lanes[job.key]
        elif len(self.lanes) > 1:
            self._note_head(lane, lane.head())

    def oldest(self) -> Lane:
        """The lane whose head waited longest; the level must not be empty."""
        if len(self.lanes) == 1:
            self._heads.clear()
            return next(iter(self.lanes.values()))
        while True:
            if not self._heads:
                for lane in self.lanes.values():
                    self._note_head(lane, lane.head())
            _, number, _, lane = self._heads[0]
            if self.lanes.get(lane.key) is lane and lane.head().number == number:
                return lane
            heapq.heappop(self._heads)

    def by_age(self, limit: int) -> list[Lane]:
        """Up to `limit` lanes, the longest waiting head first."""
        return heapq.nsmallest(limit, self.lanes.values(), key=lambda lane: lane.head().enqueued_ns)

    def _note_head(self, lane: Lane, head: Job) -> None:
        self._notes += 1
        heapq.heappush(self._heads, (head.enqueued_ns, head.number, self._notes, lane))
        if len(self._heads) > 64 and len(self._heads) > 4 * len(self.lanes):
            heads = enumerate((one, one.head()) for one in self.lanes.values())
            self._heads = [(job.enqueued_ns, job.number, n, one) for n, (one, job) in heads]
            heapq.heapify(self._heads)


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
        self.count -= 1
        if job.suspect:
            self.suspects.remove(job)
        else:
            self._levels[job.level].remove(job)

    def levels(self) -> list[Level]:
        """Non-empty levels, the most urgent first."""
        return [level for level in self._order if level.count]

    def all_levels(self) -> list[Level]:
        return self._order

    def jobs(self) -> Iterator[Job]:
        yield from self.suspects
        for level in self._order:
            for lane in level.lanes.values():
                yield from lane.jobs.values()

    def oldest_ns(self) -> int:
        """When the longest waiting request came, or 0."""
        times = [job.enqueued_ns for job in self.suspects]
        times += [level.oldest().head().enqueued_ns for level in self.levels()]
        return min(times, default=0)

    def check_invariants(self) -> None:
        assert self.count == len(self.suspects) + sum(level.count for level in self._order)
        for level in self._order:
            assert level.count == sum(len(lane.jobs) for lane in level.lanes.values()), level.rank
            assert level.early >= 0
            for lane in level.lanes.values():
                assert lane.jobs, "an empty lane was kept"
                assert lane.rows == sum(job.rows for job in lane.jobs.values())
                assert all(
                    job.key == lane.key and job.level == level.rank for job in lane.jobs.values()
                )

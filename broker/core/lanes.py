"""What waits at one level of a queue: who it belongs to, what it can travel with, whose turn it is.

    Level ── Lane (batch key)       ── Flow: one user's jobs of one key, in the order they came
         └── Share (fairness key)   ──┘

Users take turns, one request each: whoever had his turn is behind all others who wait, also behind
those who come only then. Nobody's turn is kept: who has nothing queued leaves nothing here. Jobs
without a fairness key are one user's. With one user there are no turns and nothing is counted.

What only the instances on one GPU can execute has levels of its own, so that nobody is held up by
what his instance cannot see. An instance serves levels side by side: of what any can execute, and
of what needs its GPU. A turn that it gives counts in all of them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from naiad.broker.core.job import ANYWHERE, Job
from naiad.broker.core.lowest import Lowest

MISFITS_MAX: Final = 8
"""So many users' next jobs may be too large for the rest of a batch before it is closed."""


class Flow:
    """One user's jobs of one level and batch key, in order; gone for good once it is empty."""

    __slots__ = ("jobs", "lane", "share")

    def __init__(self, lane: Lane, share: Share) -> None:
        self.lane = lane
        self.share = share
        self.jobs: OrderedDict[int, Job] = OrderedDict()

    def head(self) -> Job:
        return next(iter(self.jobs.values()))


def _age(flow: Flow) -> tuple[int, int] | None:
    """Since when its first job waits."""
    return _arrival(flow.head()) if flow.jobs else None


def _arrival(job: Job) -> tuple[int, int]:
    return (job.enqueued_ns, job.number)


def _turn(flow: Flow) -> int | None:
    return flow.share.turn if flow.jobs else None


def _turn_of_share(share: Share) -> int | None:
    return share.turn if share.flows else None


class Share:
    """One user at a level: his flows by batch key. The lowest `turn` is next."""

    __slots__ = ("by_age", "flows", "key", "turn")

    def __init__(self, key: str, turn: int) -> None:
        self.key = key
        self.turn = turn
        self.flows: dict[object, Flow] = {}
        self.by_age: Lowest[Flow] | None = None
        """Kept only while there is more than one flow."""

    def oldest(self) -> Flow:
        """The flow whose head waited longest, so that no batch key starves another."""
        flows = self.flows
        if len(flows) == 1:
            self.by_age = None
            return next(iter(flows.values()))
        if self.by_age is None:
            self.by_age = Lowest(_age, flows.values())
        return self.by_age.find()


class Lane:
    """Jobs of one level that may share a batch; `rows` is the sum of theirs."""

    __slots__ = ("_left_out", "by_age", "by_turn", "flows", "key", "only_on", "rows")

    def __init__(self, key: object, only_on: int) -> None:
        self._left_out: Iterable[Flow] = ()
        """Of `by_turn`, since they were last looked at: noted again when their turns have moved."""
        self.key = key
        self.only_on = only_on
        """As its level's."""
        self.rows = 0
        self.flows: dict[str, Flow] = {}
        self.by_age: Lowest[Flow] | None = None
        self.by_turn: Lowest[Flow] | None = None
        """Both kept only while there is more than one flow."""

    def __len__(self) -> int:
        return sum(len(flow.jobs) for flow in self.flows.values())

    def head(self) -> Job:
        """The job that waited longest."""
        flows = self.flows
        if len(flows) == 1:
            self.by_age = None
            return next(iter(flows.values())).head()
        if self.by_age is None:
            self.by_age = Lowest(_age, flows.values())
        return self.by_age.find().head()

    def jobs(self) -> Iterator[Job]:
        """All of them, one user's after another's."""
        for flow in self.flows.values():
            yield from flow.jobs.values()

    def in_turn(self, rows: int) -> Iterable[Job]:
        """Jobs in the order they are served: at least those that fit into `rows` together.

        If one that is next does not fit, it comes last: other users' may fill the rest, it is
        first in the next batch.
        """
        if len(self.flows) == 1:
            self.by_turn = None
            return next(iter(self.flows.values())).jobs.values()
        return self._by_turns(rows)

    def _by_turns(self, rows: int) -> list[Job]:
        if self.by_turn is None:
            self.by_turn = Lowest(_turn, self.flows.values())
        else:
            for left_out in self._left_out:
                if left_out.jobs:
                    self.by_turn.note(left_out, self.flows.values())
        turns = self.by_turn
        found: list[Job] = []
        misfits: list[Job] = []
        had_turn: dict[Flow, None] = {}
        again: list[tuple[int, Iterator[Job]]] = []
        """Those of whom a job was taken, by the order of their next turns."""
        count = 0
        while rows > 0 and len(misfits) < MISFITS_MAX:
            flow = turns.pop()
            if flow is not None:
                if flow in had_turn:
                    continue
                had_turn[flow] = None
                jobs = iter(flow.jobs.values())
            elif again:
                _, jobs = heapq.heappop(again)
            else:
                break
            job = next(jobs, None)
            if job is None:
                continue
            if job.rows > rows:
                misfits.append(job)
                continue
            rows -= job.rows
            found.append(job)
            count += 1
            heapq.heappush(again, (count, jobs))
        self._left_out = had_turn
        return found + misfits[:1]


class Turns:
    """Numbers for turns, in the order they are given; the levels of one queue share them."""

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first = 0
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


class Level:
    """All that waits at one priority, for any instance or only for those on one GPU.

    `early` jobs left the lanes but still count as queued.
    """

    __slots__ = ("_by_turn", "_kept", "_turns", "count", "early", "lanes", "only_on", "rank",
                 "shares")  # fmt: skip

    def __init__(self, rank: int, only_on: int = ANYWHERE, turns: Turns | None = None) -> None:
        self.rank = rank
        self.only_on = only_on
        self._turns = turns or Turns()
        self.lanes: dict[object, Lane] = {}
        self.shares: dict[str, Share] = {}
        self._by_turn: Lowest[Share] | None = None
        """Kept only while there is more than one share."""
        self._kept: Flow | None = None
        """Empty, and nobody's by name: most levels hold one request again and again."""
        self.count = 0
        self.early = 0

    def suits(self, gpu: int) -> bool:
        """Whether an instance that sees this GPU can execute its jobs."""
        return gpu == ANYWHERE or self.only_on in (gpu, ANYWHERE)

    def push(self, job: Job, front: bool) -> None:
        """At the end of its user's flow. In front, as what a dead worker had: also his turn."""
        lane = self.lanes.get(job.key)
        flow = None if lane is None else lane.flows.get(job.fairness_key)
        if self._kept is not None:
            if flow is None:
                self._forget(self._kept)
            else:
                flow.share.turn = self._turns.next()
            self._kept = None
        is_new = flow is None
        if flow is None:
            flow = self._new_flow(job)
        job.flow = flow
        flow.jobs[job.number] = job
        flow.lane.rows += job.rows
        self.count += 1
        if front:
            flow.jobs.move_to_end(job.number, last=False)
            self._turns.first -= 1
            flow.share.turn = self._turns.first
            self._note_share(flow.share)
            for other in flow.share.flows.values():
                _note(other)
        elif is_new:
            _note(flow)

    def _new_flow(self, job: Job) -> Flow:
        lane = self.lanes.get(job.key)
        if lane is None:
            lane = self.lanes[job.key] = Lane(job.key, self.only_on)
        share = self.shares.get(job.fairness_key)
        if share is None:
            share = self.shares[job.fairness_key] = Share(job.fairness_key, self._turns.next())
        flow = lane.flows[share.key] = share.flows[lane.key] = Flow(lane, share)
        if len(share.flows) == 1:
            self._note_share(share)
        return flow

    def _note_share(self, share: Share) -> None:
        if self._by_turn is not None:
            self._by_turn.note(share, self.shares.values())

    def has_turn(self, user: str, turn: int) -> None:
        """He is about to be served here or beside: with a new number he is behind all others."""
        share = self.shares.get(user)
        if share is not None:
            share.turn = turn

    def remove(self, job: Job) -> None:
        """It ends, or goes elsewhere."""
        flow = job.flow
        del flow.jobs[job.number]
        flow.lane.rows -= job.rows
        self.count -= 1
        if not flow.jobs:
            if self.count or job.fairness_key:
                self._forget(flow)
            else:
                self._kept = flow

    def _forget(self, flow: Flow) -> None:
        lane, share = flow.lane, flow.share
        del lane.flows[share.key]
        del share.flows[lane.key]
        if not lane.flows:
            del self.lanes[lane.key]
        if not share.flows:
            del self.shares[share.key]
            if len(self.shares) <= 1:
                self._by_turn = None

    def next_flow(self) -> Flow:
        """The one to serve: of the user whose turn it is, with the key he waits for longest.

        The level must not be empty.
        """
        shares = self.shares
        if len(shares) == 1:
            return next(iter(shares.values())).oldest()
        if self._by_turn is None:
            self._by_turn = Lowest(_turn_of_share, shares.values())
        return self._by_turn.find().oldest()

    def oldest_ns(self) -> int:
        """When its longest waiting job came; the level must not be empty."""
        if len(self.shares) == 1:
            return self.next_flow().head().enqueued_ns
        return min(lane.head().enqueued_ns for lane in self.lanes.values())

    def check_invariants(self) -> None:
        assert self.count == sum(map(len, self.lanes.values())), self.rank
        assert self.early >= 0
        flows = [flow for share in self.shares.values() for flow in share.flows.values()]
        assert len(flows) == sum(len(lane.flows) for lane in self.lanes.values())
        if self._kept is not None:
            assert (self.count, [self._kept], self._kept.share.key) == (0, flows, "")
            return
        for share in self.shares.values():
            assert share.flows, "a user with nothing queued was kept"
            assert share.turn <= self._turns.last
        for lane in self.lanes.values():
            assert lane.flows, "an empty lane was kept"
            assert lane.rows == sum(job.rows for job in lane.jobs())
            for key, flow in lane.flows.items():
                assert flow.jobs, key
                assert (flow.share, flow.lane) == (self.shares[key], lane)
                for job in flow.jobs.values():
                    assert (job.key, job.fairness_key) == (lane.key, key), job
                    assert (job.flow, job.level) == (flow, self.rank), job
                    assert job.only_on == lane.only_on == self.only_on, job


def next_flow(levels: Sequence[Level]) -> Flow:
    """The one to serve of levels side by side, none of which is empty: of the user whose turn it
    is in any of them, what he waits for longest where it is his turn. Elsewhere others would be
    served instead: a turn that another GPU's instance gave him does not count in every level."""
    if len(levels) == 1:
        return levels[0].next_flow()
    flows = [level.next_flow() for level in levels]
    user = min(flows, key=_turn_of).share.key
    return min([flow for flow in flows if flow.share.key == user], key=_since)


def _turn_of(flow: Flow) -> int:
    return flow.share.turn


def _since(flow: Flow) -> tuple[int, int]:
    return _arrival(flow.head())


def oldest_lanes(levels: Sequence[Level], limit: int) -> list[Lane]:
    """Up to `limit` lanes of levels side by side, the longest waiting head first."""
    lanes = [lane for level in levels for lane in level.lanes.values()]
    return heapq.nsmallest(limit, lanes, key=lambda lane: _arrival(lane.head()))


def _note(flow: Flow) -> None:
    """It is new, or came to the front."""
    lane, share = flow.lane, flow.share
    if lane.by_age is not None:
        lane.by_age.note(flow, lane.flows.values())
    if lane.by_turn is not None:
        lane.by_turn.note(flow, lane.flows.values())
    if share.by_age is not None:
        share.by_age.note(flow, share.flows.values())

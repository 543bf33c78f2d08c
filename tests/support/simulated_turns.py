"""Watches that users take turns: nobody who waits is passed by the same user twice on one GPU.

A batch is its first request's user's turn; others may ride with it. Not watched are models with a
delay (who is next may have to wait while others' batches are complete), and what happened before
some worker died, came back or gave batches back, because what it had goes first again.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.broker.core import events as e
from naiad.broker.core.job import Job
from naiad.broker.core.lanes import Level, Share
from naiad.broker.core.scheduler import Scheduler
from support.simulated_ledger import Violation

_BRING_BACK = (e.SlotDied, e.SlotOpened, e.BatchesGivenBack)
_Waiting = tuple[int, int, int, str]
"""Generation of a model's version, level, GPU that alone will do, user."""
_Passing = tuple[str, int]
"""User, GPU of the instance that served him."""


class Turns:
    """`check` after every decision."""

    def __init__(self) -> None:
        self._passed: dict[_Waiting, tuple[Share, set[_Passing]]] = {}
        self.passes = 0
        """How often somebody who waited saw another's turn."""

    def check(
        self, scheduler: Scheduler, events: Sequence[e.Event], actions: Sequence[e.Action]
    ) -> None:
        if any(type(event) in _BRING_BACK for event in events):
            self._passed.clear()
            return
        for action in actions:
            slot = scheduler.world.slots.get(action.slot) if type(action) is e.SendBatch else None
            batches = slot.batches() if slot is not None else ()
            for batch in batches:
                if type(action) is e.SendBatch and batch.id == action.batch.id:
                    assert slot is not None
                    assert slot.instance is not None
                    gpu = slot.instance.gpu
                    self._sent(batch.id, gpu, [job for job in batch.jobs if job is not None])

    def _sent(self, batch: int, gpu: int, jobs: list[Job]) -> None:
        if not jobs or jobs[0].suspect or jobs[0].model.batch_policy.delay_ns:
            return
        first = jobs[0]
        if any(first.model.level_policy(level).size_max for level in range(5)):
            return  # a full queue makes room in the midst of a message, before all is admitted
        beside = [one for one in first.model.queue.all_levels() if one.suits(gpu)]
        for job in jobs:
            for level in beside:
                if level.rank == job.level:
                    self._passed.pop(_waiting(job, level), None)
        had = {job.fairness_key for job in jobs if job.level == first.level}
        passing = (first.fairness_key, gpu)
        for level in beside:
            if level.rank == first.level and level.count:
                self._passes(level, batch, passing, had)

    def _passes(self, level: Level, batch: int, passing: _Passing, had: set[str]) -> None:
        for key, share in level.shares.items():
            heads = [flow.head() for flow in share.flows.values()]
            if key in had or min(head.number for head in heads) > batch:
                continue
            waiting = _waiting(heads[0], level)
            share_before, passed = self._passed.get(waiting, (share, set()))
            if share_before is not share:
                passed = set()  # he had left, and came again
            self._passed[waiting] = (share, passed)
            if passing in passed:
                raise Violation(
                    f"user {passing[0]!r} had two turns while {key!r} waited",
                    int(heads[0].request.label),
                )
            passed.add(passing)
            self.passes += 1


def _waiting(job: Job, level: Level) -> _Waiting:
    version = job.model.generation * 100 + job.model.version
    return (version, job.level, level.only_on, job.fairness_key)

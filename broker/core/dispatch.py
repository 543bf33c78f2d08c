"""Batches out to workers, and back into the queue what no worker finished.

Owns which worker gets what, and when: a worker runs one batch and may have one more, sent late,
just before the running one is predicted to end (see prediction). Until then its requests count as
queued. Where executions are short and the model does not batch, a whole series is sent ahead. Also
the watchdog over executions. It never looks at a result.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from naiad.broker.core.answers import Answers, not_ready_error
from naiad.broker.core.batcher import EARLY, Choice, choose
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.events import SendBatch
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.instances import HOPELESS, InstanceState, Slot
from naiad.broker.core.job import ANYWHERE, Batch, Job, JobState
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.packing import fitting, pack
from naiad.broker.core.world import World
from naiad.protocol import messages as m

_make: Final = tuple.__new__
EARLY_MARGIN_NS: Final = 20_000
"""Sent this much before the computed moment: the loop's timer is late by about a tenth of a ms."""


class Dispatch:
    """Decides which worker gets what."""

    def __init__(self, world: World, answers: Answers, fleet: Fleet) -> None:
        self._world = world
        self._answers = answers
        self._fleet = fleet

    def schedule(self) -> None:
        """Look at every model that something happened to."""
        dirty = self._world.dirty
        while dirty:
            models = list(dirty)
            dirty.clear()
            for model in models:
                self._dispatch(model)

    def _dispatch(self, model: ModelVersion) -> None:
        queue = model.queue
        wake_ns = NEVER_NS
        now_ns = self._world.now_ns
        if model.spans_gpus:
            wake_ns = self._fill_by_gpu(model)
        else:
            while model.idle and queue.count:
                slot = model.idle[-1]
                series = self._series(model, slot, len(model.idle))
                jobs, wake_ns, reason = choose(queue, model.batch_policy, now_ns, series)
                if not jobs:
                    break
                model.idle.pop()
                self._send_all(model, slot, jobs, reason)
        is_busy = not model.idle or model.spans_gpus
        if queue.count and is_busy and model.config.naiad.late_batch:
            wake_ns = min(wake_ns, self._send_early(model))
        if wake_ns == NEVER_NS:
            model.wake_ns = 0
        elif wake_ns != model.wake_ns:
            self._wake_at(model, wake_ns)

    def _fill_by_gpu(self, model: ModelVersion) -> int:
        """Give idle instances what each can see; when to look again."""
        wake_ns = NEVER_NS
        for slot in reversed(model.idle.copy()):
            if not model.queue.count:
                break
            jobs, again_ns, reason = self._choose(model, slot, len(model.idle))
            if jobs:
                model.idle.remove(slot)
                self._send_all(model, slot, jobs, reason)
            else:
                wake_ns = min(wake_ns, again_ns)
        return wake_ns

    def _choose(self, model: ModelVersion, slot: Slot, idle: int) -> Choice:
        gpu = ANYWHERE
        if model.spans_gpus:
            assert slot.instance is not None
            gpu = slot.instance.gpu
        series = self._series(model, slot, idle, gpu)
        return choose(model.queue, model.batch_policy, self._world.now_ns, series, gpu)

    def _series(self, model: ModelVersion, slot: Slot, idle: int, gpu: int = ANYWHERE) -> int:
        """How many requests go to a worker at once though each is executed alone; what waits and
        it could execute is shared among `idle` workers."""
        if model.batch_policy.batching or not model.config.naiad.retry:
            return 1
        series = slot.prediction.series()
        return series if idle == 1 else min(series, -(-model.queue.count_for(gpu) // idle))

    def _wake_at(self, model: ModelVersion, when_ns: int) -> None:
        model.wake_ns = when_ns

        def look() -> None:
            if model.wake_ns == when_ns:
                self._world.wake(model)

        self._world.at(when_ns, look)

    def _send_early(self, model: ModelVersion) -> int:
        """Fill workers whose batch is about to end; when to look again."""
        now_ns = self._world.now_ns
        again_ns = NEVER_NS
        for instance in model.instances:
            slot = instance.slot
            if slot is None or slot.ahead or slot.current is None or slot.silent:
                continue
            due_ns = slot.early_due_ns
            if due_ns == 0 or slot.stopping or model.queue.suspect_for(instance.gpu):
                continue
            if due_ns - EARLY_MARGIN_NS > now_ns:
                again_ns = min(again_ns, due_ns - EARLY_MARGIN_NS)
                continue
            if any(job is not None and job.suspect for job in slot.current.jobs):
                continue
            jobs, wake_ns, _ = self._choose(model, slot, 1)
            if not jobs:
                again_ns = min(again_ns, wake_ns)
                if model.spans_gpus:
                    continue  # what this one cannot see may be for the next
                return again_ns
            self._send_all(model, slot, jobs, EARLY)
            if not len(model.queue):
                break
        return again_ns

    def _send_all(self, model: ModelVersion, slot: Slot, jobs: list[Job], reason: str) -> None:
        """One batch, or without batching one for each job: the worker begins the first."""
        if model.batch_policy.batching:
            self._send(model, slot, jobs, reason)
            return
        for job in jobs:
            self._send(model, slot, [job], reason)
            reason = EARLY

    def _send(self, model: ModelVersion, slot: Slot, jobs: list[Job], reason: str) -> None:
        world = self._world
        now_ns = world.now_ns
        queue = model.queue
        deadlines = world.deadlines
        early = reason == EARLY
        assert slot.instance is not None
        gpu = slot.instance.gpu
        if len(jobs) > 1:
            jobs = fitting(jobs, model)
        rows = 0
        for job in jobs:
            queue.take(job, gpu)
            rows += job.rows
            if early:
                job.state = JobState.EARLY
                queue.level_of(job).early += 1
            else:
                job.state = JobState.EXECUTING
                if job.deadline_ns:
                    deadlines.discard(job)
        batch = Batch(world.number(), slot, list(jobs), rows, now_ns)
        for job in jobs:
            job.batch = batch
        batch.reason = reason
        batch.early = early
        if early:
            self._world.counters.early_batches += 1
            slot.ahead.append(batch)
            slot.early_due_ns = 0
        else:
            slot.current = batch
            model.executing += len(jobs)
            slot.instance.move(InstanceState.BUSY)
            self.predict(slot, batch, now_ns)
        requests, regions, frames = pack(slot, jobs, now_ns, world.regions)
        message = _make(m.Batch, (batch.id, slot.acknowledged, requests, regions))
        world.actions.append(_make(SendBatch, (slot.key, message, frames)))

    def predict(self, slot: Slot, batch: Batch, start_ns: int) -> None:
        """When to send the next batch ahead: the end of this one, less what a hand-over takes."""
        batch.start_ns = start_ns
        assert slot.instance is not None
        limit_ms = slot.instance.model.config.naiad.execution_timeout_ms
        if limit_ms and not slot.is_watched:
            self._watch(slot, start_ns + limit_ms * 1_000_000)
        busy_ns = slot.prediction.busy_ns(batch.rows)
        if busy_ns is None:
            slot.early_due_ns = 0
            return
        slot.early_due_ns = start_ns + busy_ns

    def _watch(self, slot: Slot, due_ns: int) -> None:
        """One timer per slot, however many executions there are."""
        slot.is_watched = True
        self._world.at(due_ns, partial(self._look_at, slot))

    def _look_at(self, slot: Slot) -> None:
        """The execution watchdog: a hung worker is killed, and its batch is suspect."""
        slot.is_watched = False
        batch = slot.current
        if batch is None or slot.stopping or slot.instance is None:
            return
        limit_ms = slot.instance.model.config.naiad.execution_timeout_ms
        due_ns = batch.start_ns + limit_ms * 1_000_000
        if self._world.now_ns < due_ns:
            self._watch(slot, due_ns)
            return
        reason = f"an execution took longer than naiad.execution_timeout_ms = {limit_ms} ms"
        self._world.log("error", f"worker {slot.name} pid {slot.pid}: {reason}")
        self._fleet.fence(slot, reason)

    # --- back ------------------------------------------------------------------------

    def take_back(self, batch: Batch) -> list[Job]:
        """What of a batch that its worker does not have any more is to be queued again; requests
        that were answered meanwhile end here."""
        again: list[Job] = []
        for job in batch.jobs:
            if job is None:
                continue
            if job.state is JobState.ANSWERED:
                self._answers.release(job)
                continue
            if job.state is JobState.EARLY:
                self._world.uncount_early(job)
            again.append(job)
        return again

    def requeue(self, job: Job) -> None:
        """Put a job back at the head of its queue, under its first arrival time."""
        model = job.model
        job.batch = None
        if all(one.state in HOPELESS for one in model.instances):
            self._answers.fail(job, not_ready_error(model, model.reason))
            return
        job.state = JobState.QUEUED
        model.queue.push_front(job)
        if job.deadline_ns:
            self._world.deadlines.add(job)
        self._world.wake(model)

    def requeue_all(self, jobs: list[Job]) -> None:
        """Put jobs back at the head of their queues, in the order they first came."""
        for job in sorted(jobs, key=lambda job: (job.first_enqueued_ns, job.number), reverse=True):
            self.requeue(job)

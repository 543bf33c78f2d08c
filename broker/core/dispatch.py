"""Batches out to workers, results in: the heart of the hot path.

A worker runs one batch and may have one more, sent late: just before the running one is predicted
to end (see prediction). Until then its requests count as queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from naiad.broker.core.answers import SMALL_BYTES_MAX, Answers, not_ready_error, timeout_error
from naiad.broker.core.batcher import choose
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.events import Frames, KillSlot, SendBatch, TellSlot
from naiad.broker.core.instances import InstanceState, Slot
from naiad.broker.core.job import Batch, Job, JobState
from naiad.broker.core.models import ModelState, ModelVersion
from naiad.broker.core.world import World
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, NaiadError, error_from_wire
from naiad.protocol.messages import BatchRequest, InferAnswer, Place, Region, Tensor

_INLINE = int(Place.INLINE)
_REGION = int(Place.REGION)
_LEASE = int(Place.LEASE)
_make = tuple.__new__

WASTE_FACTOR: Final = 4
"""Frames shared with other requests are forwarded whole while no larger than this times the part
that the batch needs."""
_HOPELESS: Final = (InstanceState.FATAL, InstanceState.EXITED)
"""Not without a new decision will such an instance run anything."""
BATCH_HEADER_BYTES_MAX: Final = m.WORKER_HEADER_BYTES_MAX * 3 // 4
"""For the requests of a batch; the rest is for regions that are new to its worker."""
EARLY_MARGIN_NS: Final = 20_000
"""Sent this much before the computed moment: the loop's timer is late by about a tenth of a ms."""


class Dispatch:
    """Decides which worker gets what, and ends jobs with what comes back."""

    def __init__(self, world: World, answers: Answers) -> None:
        self._world = world
        self._answers = answers
        self.orphans: dict[tuple[int, int], tuple[m.BatchResult, Frames, Slot]] = {}
        """Results of adopted batches whose clients have not come back yet."""

    # --- out ---------------------------------------------------------------------------

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
        while model.idle and queue.count:
            jobs, wake_ns = choose(queue, model.batch_policy, now_ns)
            if not jobs:
                break
            self._send(model, model.idle.pop(), jobs, early=False)
        if queue.count and not model.idle and model.config.naiad.late_batch:
            wake_ns = min(wake_ns, self._send_early(model))
        if wake_ns == NEVER_NS:
            model.wake_ns = 0
        elif wake_ns != model.wake_ns:
            self._wake_at(model, wake_ns)

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
            if slot is None or slot.early is not None or slot.current is None or slot.silent:
                continue
            due_ns = slot.early_due_ns
            if due_ns == 0 or slot.stopping or model.queue.suspects:
                continue
            if due_ns - EARLY_MARGIN_NS > now_ns:
                again_ns = min(again_ns, due_ns - EARLY_MARGIN_NS)
                continue
            if any(job is not None and job.suspect for job in slot.current.jobs):
                continue
            jobs, wake_ns = choose(model.queue, model.batch_policy, now_ns)
            if not jobs:
                return min(again_ns, wake_ns)
            self._world.counters.early_batches += 1
            self._send(model, slot, jobs, early=True)
            if not len(model.queue):
                break
        return again_ns

    def _send(self, model: ModelVersion, slot: Slot, jobs: list[Job], early: bool) -> None:
        world = self._world
        now_ns = world.now_ns
        queue = model.queue
        deadlines = world.deadlines
        if len(jobs) > 1:
            jobs = _fitting(jobs, model)
        rows = 0
        for job in jobs:
            queue.remove(job)
            rows += job.rows
            if early:
                job.state = JobState.EARLY
                queue.level(job.level).early += 1
            else:
                job.state = JobState.EXECUTING
                if job.deadline_ns:
                    deadlines.discard(job)
        batch = Batch(world.number(), slot, list(jobs), rows, now_ns)
        for job in jobs:
            job.batch = batch
        batch.early = early
        if early:
            slot.early = batch
            slot.early_due_ns = 0
        else:
            slot.current = batch
            model.executing += len(jobs)
            assert slot.instance is not None
            slot.instance.move(InstanceState.BUSY)
            self._predict(slot, batch, now_ns)
        requests, regions, frames = self._pack(slot, jobs)
        message = m.Batch(batch.id, slot.acknowledged, requests, regions)
        world.actions.append(SendBatch(slot.key, message, frames))

    def _predict(self, slot: Slot, batch: Batch, start_ns: int) -> None:
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
        self._world.actions.append(KillSlot(slot.key, reason))

    def _pack(
        self, slot: Slot, jobs: list[Job]
    ) -> tuple[tuple[BatchRequest, ...], tuple[Region, ...], Frames]:
        """A batch's requests with their inline bytes in its own frames.

        When all requests came in one client message its frames are forwarded as they are.
        """
        world = self._world
        now_ns = world.now_ns
        shared = jobs[0].frames
        used = 0
        as_they_are = True
        for job in jobs:
            if job.frames is not shared:
                as_they_are = False
                break
            used += job.inline_bytes
        if as_they_are and sum(map(len, shared)) > WASTE_FACTOR * used:
            as_they_are = False
        frames: Frames = []
        small: Frames = []
        small_bytes = 0
        regions: list[Region] = []
        requests = []
        for job in jobs:
            request = job.request
            inputs = request.inputs
            if not as_they_are:
                source = job.frames
                packed = []
                for tensor in inputs:
                    name, datatype, shape, place, index, offset, size = tensor
                    if place == _INLINE:
                        frame = source[index]
                        if size != len(frame):
                            frame = frame[offset : offset + size]
                        if size <= SMALL_BYTES_MAX:
                            small.append(frame)
                            where, at = 0, small_bytes
                            small_bytes += size
                        else:
                            frames.append(frame)
                            where, at = len(frames), 0
                        tensor = _make(Tensor, (name, datatype, shape, _INLINE, where, at, size))
                    packed.append(tensor)
                inputs = tuple(packed)
            if job.regional:
                self._new_regions(slot, request.inputs, request.outputs, regions)
            left_us = max(1, (job.deadline_ns - now_ns) // 1000) if job.deadline_ns else 0
            requests.append(
                _make(
                    BatchRequest,
                    (
                        job.session.key, request.id, request.label, inputs, request.outputs,
                        left_us, request.priority, request.sequence, request.traceparent,
                        request.parameters,
                    ),
                )
            )  # fmt: skip
        if as_they_are:
            return tuple(requests), tuple(regions), shared
        return tuple(requests), tuple(regions), [b"".join(small), *frames]

    def _new_regions(
        self,
        slot: Slot,
        inputs: tuple[Tensor, ...],
        outputs: tuple[m.OutputRequest, ...],
        regions: list[Region],
    ) -> None:
        for tensor in inputs:
            if tensor[3] == _REGION and tensor[4] not in slot.regions:
                slot.regions.add(tensor[4])
                regions.append(self._world.regions[tensor[4]])
        for output in outputs:
            if output[1] == _REGION and output[2] not in slot.regions:
                slot.regions.add(output[2])
                regions.append(self._world.regions[output[2]])

    # --- in ----------------------------------------------------------------------------

    def finished(self, slot: Slot, results: m.Results, frames: Frames) -> None:
        """A worker's results: answer, free the worker, learn how long it took."""
        for arena in results.arenas:
            slot.arenas[arena.id] = arena
        batch = slot.current
        if batch is None or batch.id != results.batch:
            batch = slot.held.pop(results.batch, None)
            if batch is None or len(results.results) != len(batch.jobs):
                self._world.counters.late_results += 1
            else:
                self._answer_adopted(slot, batch, results, frames)
            return
        if len(results.results) != len(batch.jobs):
            self._world.counters.protocol_errors += 1
            return
        slot.acknowledged = batch.id
        instance = slot.instance
        assert instance is not None
        model = instance.model
        self._learn(slot, batch, results)
        if batch.keys:
            self._answer_adopted(slot, batch, results, frames)
        else:
            self._answer(slot, model, batch, results, frames)
        model.consecutive_deaths = 0
        instance.deaths = 0
        self.free(slot)

    def free(self, slot: Slot) -> None:
        """The running batch ended: the early one takes its place, or the worker is idle."""
        world = self._world
        instance = slot.instance
        assert instance is not None
        model = instance.model
        if slot.current is not None:
            model.executing -= len(slot.current.jobs)
            slot.current.jobs = []  # jobs and batches point at each other: end the cycle here
        slot.current = None
        early = slot.early
        if early is not None:
            slot.early = None
            slot.current = early
            model.executing += len(early.jobs)
            for job in early.jobs:
                if job is not None and job.state is JobState.EARLY:
                    job.state = JobState.EXECUTING
                    model.queue.level(job.level).early -= 1
                    if job.deadline_ns:
                        world.deadlines.discard(job)
            # Its worker began it when the results just taken in were sent.
            self._predict(slot, early, world.now_ns - slot.prediction.handover_ns())
        else:
            if instance.state is InstanceState.BUSY:
                instance.move(InstanceState.READY)
            if instance.state is InstanceState.READY and not slot.silent and not slot.stopping:
                model.idle.append(slot)
        world.dirty[model] = None

    def _learn(self, slot: Slot, batch: Batch, results: m.Results) -> None:
        durations = results.durations
        busy_ns = durations.input_ns + durations.infer_ns + durations.output_ns
        handover_ns = None if batch.early else self._world.now_ns - batch.sent_ns - busy_ns
        slot.prediction.observe(batch.rows, busy_ns, handover_ns)

    def _answer(
        self, slot: Slot, model: ModelVersion, batch: Batch, results: m.Results, frames: Frames
    ) -> None:
        world = self._world
        now_ns = world.now_ns
        input_ns, infer_ns, output_ns = results.durations
        statistics = model.statistics
        version = model.version
        done = 0
        rows = 0
        total_ns = 0
        sent_ns = batch.sent_ns
        queue_ns = 0
        outgoing = None
        jobs = batch.jobs
        first = jobs[0].session if jobs[0] is not None else None
        # One client, and nothing else to tell it: its frames pass through as they came.
        direct = first is not None and all(job is not None and job.session is first for job in jobs)
        if direct and first is not None:
            self._answers.make_room(first)
            outgoing = self._answers.to(first)
            direct = not outgoing.small and not outgoing.frames
        for job, result in zip(jobs, results.results, strict=True):
            assert job is not None
            outputs = result.outputs
            if job.state is not JobState.EXECUTING:
                world.counters.late_results += 1
                self.give_back(slot, job.session.key, job.request.id, outputs)
                self._answers.release(job)
                continue
            error = result.error
            if error is not None:
                self._answers.fail(job, error_from_wire(error))
                continue
            job.state = JobState.DONE
            session = job.session
            request_id = job.request.id
            if session.jobs.pop(request_id, None) is not None:
                session.bytes -= job.inline_bytes
            if not direct:
                outgoing = self._answers.to(session)
                outputs_now = outgoing.pack(outputs, frames)
            else:
                outputs_now = outputs
            if job.wishes:
                outputs_now = _as_wished(job, outputs_now)
            assert outgoing is not None
            for tensor in outputs:
                if tensor[3] == _LEASE:
                    self._lend(slot, job, outputs, outgoing.regions)
                    break
            outgoing.answers.append(
                _make(
                    InferAnswer,
                    (request_id, None, version, outputs_now, 0, True, result.parameters),
                )
            )
            done += 1
            rows += job.rows
            total_ns += now_ns - job.first_enqueued_ns
            queue_ns += max(0, sent_ns - job.first_enqueued_ns)
        if direct and outgoing is not None and frames:
            # Frame 0 is the shared small frame of the message: same numbering on both sides.
            outgoing.small = [frames[0]]
            outgoing.small_bytes = len(frames[0])
            outgoing.frames = list(frames[1:])
        if done:
            statistics.inference_count += rows
            statistics.success_count += done
            statistics.success_ns += total_ns
            statistics.queue_ns += queue_ns
            statistics.compute_input_ns += input_ns * done
            statistics.compute_infer_ns += infer_ns * done
            statistics.compute_output_ns += output_ns * done
            statistics.last_inference_ms = world.wall_ms
            statistics.executed(batch.rows, input_ns, infer_ns, output_ns)

    def _lend(
        self, slot: Slot, job: Job, outputs: Sequence[Tensor], regions: dict[int, Region]
    ) -> None:
        for tensor in outputs:
            if tensor.place == _LEASE:
                arena = slot.arenas.get(tensor.region)
                if arena is not None:
                    regions[arena.id] = arena
                    self._world.lent_arenas[arena.id] = arena
                    job.session.leases[(arena.id, job.request.id)] = slot.key

    def give_back(
        self, slot: Slot, session: int, request_id: int, outputs: Sequence[Tensor]
    ) -> None:
        if any(tensor.place == _LEASE for tensor in outputs):
            self._world.actions.append(TellSlot(slot.key, m.Return(((session, request_id),)), []))

    # --- adopted batches ---------------------------------------------------------------

    def _answer_adopted(self, slot: Slot, batch: Batch, results: m.Results, frames: Frames) -> None:
        """Results of a batch that an earlier broker sent: answer who is back, keep the rest."""
        for key, job, result in zip(batch.keys, batch.jobs, results.results, strict=True):
            if job is None:
                if not self.orphans:
                    limit_ns = self._world.now_ns + 2 * self._world.limits.absence_ns
                    self._world.at(limit_ns, self.drop_orphans)
                self.orphans[key] = (result, frames, slot)
            elif job.state is JobState.EXECUTING:
                self.deliver(slot, job, result, frames)
            else:
                self.give_back(slot, *key, result.outputs)
                self._answers.release(job)

    def deliver(self, slot: Slot, job: Job, result: m.BatchResult, frames: Frames) -> None:
        """Answer one job with a result, on its own."""
        if result.error is not None:
            if result.error[0] == Code.CANCELLED:
                # By the earlier broker; its worker left it out. Whoever sent it again wants it,
                # or says so again.
                self.requeue(job)
            else:
                self._answers.fail(job, error_from_wire(result.error))
            return
        self._answers.finish(job)
        outgoing = self._answers.to(job.session)
        self._lend(slot, job, result.outputs, outgoing.regions)
        outputs = _as_wished(job, outgoing.pack(result.outputs, frames))
        outgoing.answers.append(
            InferAnswer(
                job.request.id, None, job.model.version, outputs, 0, True, result.parameters
            )
        )
        job.model.statistics.success_count += 1
        job.model.statistics.inference_count += job.rows

    def requeue(self, job: Job) -> None:
        """Put a job back at the head of its queue, under its first arrival time."""
        model = job.model
        job.batch = None
        if all(one.state in _HOPELESS for one in model.instances):
            self._answers.fail(job, not_ready_error(model, model.reason))
            return
        job.state = JobState.QUEUED
        model.queue.push_front(job)
        if job.deadline_ns:
            self._world.deadlines.add(job)
        self._world.wake(model)

    def drop_orphans(self) -> None:
        """Results whose clients did not come back in time are given up."""
        for (key, request_id), (_, _, slot) in self.orphans.items():
            self._world.counters.late_results += 1
            session = self._world.sessions.get(key)
            if session is not None and any(lease[1] == request_id for lease in session.leases):
                continue  # its client had the answer from the earlier broker, and reads it
            # Whatever this result holds: an earlier one of the same request may hold more.
            self._world.actions.append(TellSlot(slot.key, m.Return(((key, request_id),)), []))
        self.orphans.clear()

    # --- deadlines and cancel ----------------------------------------------------------

    def expire(self) -> None:
        """Answer every request whose time in the queue is over."""
        for item in self._world.deadlines.pop_due(self._world.now_ns):
            assert isinstance(item, Job)
            job = item
            model = job.model
            policy = model.level_policy(job.priority)
            if policy.delays and (job.suspect or job.state is JobState.EARLY):
                job.deadline_ns = 0  # it stands before or outside the levels
            elif policy.delays:
                model.queue.remove(job)
                job.level = policy.rank + 1
                job.deadline_ns = 0
                model.queue.push(job)
            elif job.state is JobState.QUEUED:
                model.queue.remove(job)
                model.statistics.rejected_count += 1
                self._answers.withdraw(job, timeout_error())
            elif job.state is JobState.EARLY:
                model.queue.level(job.level).early -= 1
                model.statistics.rejected_count += 1
                self._answers.abandon(job, timeout_error())
                self._tell_abandoned(job)
            self._world.dirty[model] = None

    def cancel(self, job: Job, fault: NaiadError) -> None:
        """End a job with CANCELLED: at once when queued, by word to its worker when that has it."""
        model = job.model
        model.statistics.cancel_count += 1
        if job.state is JobState.QUEUED:
            model.queue.remove(job)
            if job.deadline_ns:
                self._world.deadlines.discard(job)
            self._answers.withdraw(job, fault)
        else:
            if job.state is JobState.EARLY:
                model.queue.level(job.level).early -= 1
                if job.deadline_ns:
                    self._world.deadlines.discard(job)
            self._answers.abandon(job, fault)
            self._tell_abandoned(job)
        self._world.wake(model)

    def drop(self, job: Job) -> None:
        """Forget a queued job unanswered: its client is away and asks again if it returns."""
        job.model.queue.remove(job)
        if job.deadline_ns:
            self._world.deadlines.discard(job)
        self._answers.finish(job)
        self._world.wake(job.model)

    def _tell_abandoned(self, job: Job) -> None:
        batch = job.batch
        if batch is not None:
            message = m.Abandon(((job.session.key, job.request.id),))
            self._world.actions.append(TellSlot(batch.slot.key, message, []))


def _fitting(jobs: list[Job], model: ModelVersion) -> list[Job]:
    """As many of the jobs as one message to a worker can name; the others wait for the next."""
    signature = model.signature
    assert signature is not None
    each = signature.header_bytes
    left = BATCH_HEADER_BYTES_MAX
    for index, job in enumerate(jobs):
        left -= each + job.text_bytes
        if left < 0 and index:
            return jobs[:index]
    return jobs


def is_drained(model: ModelVersion) -> bool:
    """Nothing of this version is queued or running."""
    return (
        model.state is not ModelState.READY
        and not len(model.queue)
        and all(
            one.slot is None or (one.slot.current is None and one.slot.early is None)
            for one in model.instances
        )
    )


def _as_wished(job: Job, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs in regions, under the client's own ids and offsets again."""
    wishes = {wish.name: wish for wish in job.wishes}
    return tuple(
        tensor._replace(region=wishes[tensor.name].region, offset=wishes[tensor.name].offset)
        if tensor.place == _REGION and tensor.name in wishes
        else tensor
        for tensor in outputs
    )

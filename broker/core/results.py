"""Results in from workers: answer their requests, free the worker, learn how long it took.

Owns the way from a result to its answers, also for batches that an earlier broker sent (adopted):
their results stay as orphans until the clients are back. It never touches a queue itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from naiad.broker.core.answers import Answers
from naiad.broker.core.dispatch import Dispatch
from naiad.broker.core.events import Frames, SaveState, TellSlot
from naiad.broker.core.instances import Instance, InstanceState, Slot
from naiad.broker.core.job import Batch, Job, JobState
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.sessions import UNKNOWN_ARENA, Session
from naiad.broker.core.statistics import TIME_BOUNDS_NS
from naiad.broker.core.world import World
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, WireError
from naiad.protocol.messages import InferAnswer, Place, Region, Tensor

_REGION = int(Place.REGION)
_LEASE = int(Place.LEASE)
_make = tuple.__new__


class Results:
    """Ends jobs with what comes back."""

    def __init__(self, world: World, answers: Answers, dispatch: Dispatch) -> None:
        self._world = world
        self._answers = answers
        self._dispatch = dispatch
        self.orphans: dict[tuple[int, int], tuple[m.BatchResult, Frames, Slot]] = {}
        """Results of adopted batches whose clients have not come back yet."""

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
        if results.splits:
            self._world.counters.reexecutions["split_batch"] += results.splits
        instance = slot.instance
        assert instance is not None
        model = instance.model
        self._learn(slot, instance, batch, results)
        if batch.keys:
            self._answer_adopted(slot, batch, results, frames)
        else:
            self._answer(slot, model, batch, results, frames)
        model.consecutive_deaths = 0
        model.attempts = 0
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
        if slot.ahead:
            early = slot.current = slot.ahead.popleft()
            model.executing += len(early.jobs)
            for job in early.jobs:
                if job is not None and job.state is JobState.EARLY:
                    job.state = JobState.EXECUTING
                    model.queue.level_of(job).early -= 1
                    if job.deadline_ns:
                        world.deadlines.discard(job)
            # Its worker began it when the results just taken in were sent.
            self._dispatch.predict(slot, early, world.now_ns - slot.prediction.lead_ns())
        else:
            if instance.state is InstanceState.BUSY:
                instance.move(InstanceState.READY)
            if instance.state is InstanceState.READY and not slot.silent and not slot.stopping:
                model.idle.append(slot)
        world.dirty[model] = None

    def given_back(self, slot: Slot, batches: tuple[int, ...]) -> None:
        """Batches sent ahead to a worker whose execution is longer than those before: they go
        to whoever is free, and nothing more is sent ahead until it ends."""
        again: list[Job] = []
        for batch in [batch for batch in slot.ahead if batch.id in batches]:
            slot.ahead.remove(batch)
            again += self._dispatch.take_back(batch)
            batch.jobs = []
        slot.early_due_ns = 0
        self._dispatch.requeue_all(again)

    def _learn(self, slot: Slot, instance: Instance, batch: Batch, results: m.Results) -> None:
        durations = results.durations
        busy_ns = durations.input_ns + durations.infer_ns + durations.output_ns
        instance.busy_ns += busy_ns
        # Results of a series wait for each other: they say nothing of a hand-over.
        is_alone = not batch.early and not slot.ahead
        handover_ns = self._world.now_ns - batch.sent_ns - busy_ns if is_alone else None
        executed_ns = busy_ns - durations.input_ns
        slot.prediction.observe(batch.rows, executed_ns, handover_ns, durations.input_ns)
        if not instance.model.batch_policy.batching:
            slot.prediction.observe_each(busy_ns)

    def _answer(
        self, slot: Slot, model: ModelVersion, batch: Batch, results: m.Results, frames: Frames
    ) -> None:
        world = self._world
        now_ns = world.now_ns
        version = model.version
        done = 0
        rows = 0
        total_ns = 0
        sent_ns = batch.sent_ns
        queue_ns = 0
        statistics = model.statistics
        request_times = statistics.request_times
        queue_times = statistics.queue_times
        outgoing = None
        direct = False
        failed: list[tuple[Job, WireError]] = []
        """Answered last: an error may send off the message that is being put together."""
        only = _only_session(batch.jobs)
        if only is not None:
            # One client, and nothing else to tell it: its frames pass through as they came.
            self._answers.make_room(only)
            outgoing = self._answers.to(only)
            direct = not outgoing.small and not outgoing.frames
        for job, result in zip(batch.jobs, results.results, strict=True):
            assert job is not None
            error, outputs, _, _, parameters = result
            if job.state is not JobState.EXECUTING:
                world.counters.late_results += 1
                self.give_back(slot, job.session.key, job.request.id, outputs)
                self._answers.release(job)
                continue
            if error is not None:
                failed.append((job, error))
                continue
            job.state = JobState.DONE
            session = job.session
            request_id = job.request.id
            if session.jobs.pop(request_id, None) is not None:
                session.bytes -= job.inline_bytes
                if job.account is not None:
                    session.accounts.give_back(job)
            if not direct:
                if parameters:
                    self._answers.make_room(session)
                outgoing = self._answers.to(session)
                outputs_now = outgoing.pack(outputs, frames)
            else:
                outputs_now = outputs
            if job.wishes:
                outputs_now = _as_wished(job, outputs_now)
            assert outgoing is not None
            if parameters:
                outgoing.count_texts(parameters)
            for tensor in outputs:
                if tensor[3] == _LEASE:
                    self._lend(slot, job, outputs, outgoing.regions)
                    break
            outgoing.answers.append(
                _make(
                    InferAnswer,
                    (request_id, None, version, outputs_now, 0, True, parameters),
                )
            )
            done += 1
            rows += job.rows
            came_ns = job.first_enqueued_ns
            took_ns = now_ns - came_ns
            total_ns += took_ns
            request_times[bisect_left(TIME_BOUNDS_NS, took_ns)] += 1
            waited_ns = sent_ns - came_ns
            if waited_ns > 0:
                queue_ns += waited_ns
            queue_times[bisect_left(TIME_BOUNDS_NS, waited_ns)] += 1
        if direct and outgoing is not None and frames:
            # Frame 0 is the shared small frame of the message: same numbering on both sides.
            outgoing.small = [frames[0]]
            outgoing.small_bytes = len(frames[0])
            outgoing.frames = list(frames[1:])
        for job, error in failed:
            self._answers.failed_in_worker(job, error)
        if done:
            statistics.inference_count += rows
            statistics.success_count += done
            statistics.success_ns += total_ns
            statistics.queue_ns += queue_ns
            statistics.last_inference_ms = world.wall_ms
            statistics.executed(batch.rows, done, results.durations, batch.reason)

    def _lend(
        self, slot: Slot, job: Job, outputs: Sequence[Tensor], regions: dict[int, Region]
    ) -> None:
        for tensor in outputs:
            if tensor.place == _LEASE:
                arena = slot.arenas.get(tensor.region)
                if arena is not None:
                    regions[arena.id] = arena
                    self._world.lent_arenas[arena.id] = arena
                    session = job.session
                    session.leases[(arena.id, job.request.id)] = slot.key
                    if not session.is_kept:
                        session.is_kept = True
                        self._world.actions.append(SaveState())

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
                self._dispatch.requeue(job)
            else:
                self._answers.failed_in_worker(job, result.error)
            return
        self._answers.finish(job)
        self._answers.make_room(job.session)
        outgoing = self._answers.to(job.session)
        outgoing.count_texts(result.parameters)
        self._lend(slot, job, result.outputs, outgoing.regions)
        outputs = _as_wished(job, outgoing.pack(result.outputs, frames))
        outgoing.answers.append(
            InferAnswer(
                job.request.id, None, job.model.version, outputs, 0, True, result.parameters
            )
        )
        statistics = job.model.statistics
        took_ns = self._world.now_ns - job.first_enqueued_ns
        statistics.success_count += 1
        statistics.success_ns += took_ns
        statistics.inference_count += job.rows
        statistics.request_times[bisect_left(TIME_BOUNDS_NS, took_ns)] += 1
        statistics.queue_times[0] += 1  # another broker had it in its queue

    def drop_orphans(self) -> None:
        """Results whose clients did not come back in time are given up."""
        for (key, request_id), (_, _, slot) in self.orphans.items():
            self._world.counters.late_results += 1
            session = self._world.sessions.get(key)
            if session is not None and any(lease[1] == request_id for lease in session.leases):
                continue  # its client had the answer from the earlier broker, and reads it
            if session is not None and not session.is_heard:
                session.leases[UNKNOWN_ARENA, request_id] = slot.key  # it may have had
                continue
            # Whatever this result holds: an earlier one of the same request may hold more.
            self._world.actions.append(TellSlot(slot.key, m.Return(((key, request_id),)), []))
        self.orphans.clear()


def _only_session(jobs: Sequence[Job | None]) -> Session | None:
    """The session that all jobs of a batch belong to, if it is one."""
    first = jobs[0]
    if first is None:
        return None
    session = first.session
    for job in jobs:
        if job is None or job.session is not session:
            return None
    return session


def _as_wished(job: Job, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs in regions, under the client's own ids and offsets again."""
    wishes = {wish.name: wish for wish in job.wishes}
    return tuple(
        tensor._replace(region=wishes[tensor.name].region, offset=wishes[tensor.name].offset)
        if tensor.place == _REGION and tensor.name in wishes
        else tensor
        for tensor in outputs
    )

"""After a restart: workers and clients of the earlier broker come back, and nothing runs twice
that still runs or has a result somewhere.

While recovering, fresh requests run, a resent one joins the running or finished copy of itself and
waits otherwise. It ends when every known worker has said hello or is proven dead; whoever is silent
for too long is killed, but what it may still do is over only with that proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from naiad.broker.core.admission import Admission
from naiad.broker.core.answers import Answers, cancelled_error
from naiad.broker.core.dispatch import Dispatch
from naiad.broker.core.events import Frames, Json, KillSlot, SaveState, TellSlot
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.instances import InstanceState, Slot
from naiad.broker.core.job import Batch, Job, JobState
from naiad.broker.core.loading import Loading
from naiad.broker.core.memory import Memory
from naiad.broker.core.models import ModelState
from naiad.broker.core.results import Results
from naiad.broker.core.sessions import Session
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.world import World
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, Unavailable


class Recovery:
    """Knows who is missing, and which requests wait for them."""

    def __init__(
        self,
        world: World,
        answers: Answers,
        admission: Admission,
        dispatch: Dispatch,
        results: Results,
        withdrawal: Withdrawal,
        fleet: Fleet,
        loading: Loading,
        memory: Memory,
    ) -> None:
        self._world = world
        self._answers = answers
        self._admission = admission
        self._dispatch = dispatch
        self._results = results
        self._withdrawal = withdrawal
        self._fleet = fleet
        self._loading = loading
        self._memory = memory
        self._missing: dict[int, Json] = {}
        """Entries of an earlier broker's ledger that have not been heard of yet."""
        self._condemned: dict[int, Json] = {}
        """Those of them that were killed for their silence and are not proven dead yet."""
        self._waiting: dict[Session, dict[int, tuple[m.InferRequest, Frames]]] = {}
        self._cancelled: dict[tuple[Session, int], None] = {}
        self._refused: dict[tuple[int, int], tuple[Session, m.InferRequest, Frames]] = {}

    def start(self, ledger: Sequence[Json]) -> None:
        """Slots that an earlier broker knew; empty means a fresh start."""
        self._missing = {entry["slot"]: entry for entry in ledger}
        if not self._missing:
            return
        self._world.recovering = True
        self._world.log("info", f"recovering: waiting for {len(ledger)} workers to say hello")
        limit_ns = self._world.now_ns + self._world.limits.absence_ns
        self._world.at(limit_ns, self._out_of_time)

    def _out_of_time(self) -> None:
        """Silent workers are killed and their instances given to others. What they may still be
        executing waits on: a killed process may have a core or a disk for a while yet."""
        for slot in self._missing:
            reason = "it did not say hello to the restarted broker in time"
            self._world.actions.append(KillSlot(slot, reason))
        self._condemned, self._missing = self._missing, {}
        self._end()

    def is_condemned(self, slot: int) -> bool:
        """Whether this worker was killed for its silence: a hello on its way counts no more."""
        return slot in self._condemned

    @property
    def is_complete(self) -> bool:
        """Whether every worker of an earlier broker was heard of or is proven dead."""
        return not self._world.recovering and not self._condemned

    def heard(self, slot: int) -> None:
        """A known slot said hello, or is proven dead."""
        if self._condemned.pop(slot, None) is not None and self.is_complete:
            self._let_go()
        if self._world.recovering:
            self._missing.pop(slot, None)
            if not self._missing:
                self._end()

    def _end(self) -> None:
        world = self._world
        if not world.recovering:
            return
        world.recovering = False
        world.log("info", "recovered")
        if self.is_complete:
            self._let_go()
        world.actions.append(SaveState())
        self._loading.assign()
        self._fleet.want()

    def _let_go(self) -> None:
        """Nobody is left who may have a copy of what waited."""
        waiting, self._waiting = self._waiting, {}
        cancelled, self._cancelled = self._cancelled, {}
        for session, requests in waiting.items():
            if not session.ended:
                for request, frames in requests.values():
                    self.resent(session, request, frames)
        for session, request_id in cancelled:
            job = session.jobs.get(request_id)
            if job is not None:
                self._withdrawal.cancel(job, cancelled_error())

    def ledger(self) -> list[Json]:
        """The slots as the state file keeps them, also those that are still waited for: this
        broker may die before they come."""
        known = [
            {"slot": slot.key, "name": slot.name, "pid": slot.pid, "device": slot.device}
            for slot in self._world.slots.values()
        ]
        return [*known, *self._missing.values(), *self._condemned.values()]

    # --- clients -----------------------------------------------------------------------

    def resent(self, session: Session, request: m.InferRequest, frames: Frames) -> None:
        """A request the client had sent before: join its running or finished copy, or run it."""
        world = self._world
        if self._waiting:
            self._waiting.get(session, {}).pop(request.id, None)  # this attempt takes its place
        abandoned = session.zombies.get(request.id)
        if abandoned is not None:
            self._answers.answer_again(abandoned)
            return
        if request.id in session.jobs:
            world.counters.joined_requests += 1
            return
        if request.id in session.settled:
            self._answers.settled_again(session, request.id)
            return
        key = (session.key, request.id)
        orphan = self._results.orphans.pop(key, None)
        if orphan is not None and not _was_cancelled(orphan[0]):
            result, result_frames, slot = orphan
            world.counters.joined_requests += 1
            try:
                job = self._admission.prepare(session, request, frames)
            except Exception as raised:
                fault = world.blame(raised, "the admission of this request")
                self._results.give_back(slot, *key, result.outputs)
                self._answers.refuse(session, request.id, fault)
                return
            self._results.deliver(slot, job, result, result_frames)
            return
        copy = self._copy_of(key)
        if copy is not None:
            self._join(session, request, frames, *copy)
            return
        if not self.is_complete:
            self._wait(session, request, frames)
            return
        # Its answer was lost on the way, and with it what a worker may have lent for it.
        self._memory.released(
            session, tuple(lease for lease in session.leases if lease[1] == request.id)
        )
        world.counters.reexecutions["resent"] += 1
        self._admission.admit(session, request, frames)

    def _wait(self, session: Session, request: m.InferRequest, frames: Frames) -> None:
        """Until every worker that may have a copy has been heard of."""
        waiting = self._waiting.setdefault(session, {})
        if len(waiting) >= self._world.limits.session_requests_max:
            fault = Unavailable(
                f"{len(waiting)} requests wait for the server to recover; wait for answers",
                code=Code.BUDGET_EXCEEDED,
            )
            self._answers.refuse(session, request.id, fault)
            return
        waiting[request.id] = (request, frames)

    def cancel(self, session: Session, request_id: int) -> None:
        """Cancel a request that waits for the end of the recovery: not before it is known whether
        a worker still writes to its memory."""
        if request_id in self._waiting.get(session, {}):
            self._cancelled[session, request_id] = None

    @property
    def has_refused(self) -> bool:
        return bool(self._refused)

    def look_again(self) -> None:
        """Requests that could not join their copies: answered when these have ended."""
        for key, (session, request, frames) in list(self._refused.items()):
            if session.ended or not self._copy_of(key):
                del self._refused[key]
                if not session.ended:
                    self.resent(session, request, frames)

    def _copy_of(self, key: tuple[int, int]) -> tuple[Batch, int] | None:
        """Where a worker has a request of an earlier broker."""
        for slot in self._world.slots.values():
            for batch in (*slot.held.values(), *slot.batches()):
                if key in batch.keys:
                    return batch, batch.keys.index(key)
        return None

    def _join(
        self, session: Session, request: m.InferRequest, frames: Frames, batch: Batch, index: int
    ) -> None:
        try:
            job = self._admission.prepare(session, request, frames)
        except Exception as raised:
            self._world.blame(raised, "the admission of this request")
            # Refused, but not while a worker may still write to its memory.
            self._refused[session.key, request.id] = (session, request, frames)
            return
        job.batch = batch
        job.state = JobState.EXECUTING
        batch.jobs[index] = job
        session.jobs[request.id] = job
        session.bytes += job.inline_bytes
        if request.accounting_key:
            session.accounts.charge(job)
        self._world.counters.joined_requests += 1

    # --- workers -----------------------------------------------------------------------

    def adopt(self, slot: Slot, hello: m.SlotHello) -> None:
        """A worker's first hello to this broker; it may have a model and batches."""
        world = self._world
        if hello.instance == 0:
            self._welcome(slot, keep=True)
            return
        instance = world.instances.get(hello.instance)
        waits = (InstanceState.WAITING, InstanceState.BACKOFF)
        is_wanted = instance is not None and instance.slot is None and instance.state in waits
        if instance is None or not is_wanted or world.draining:
            world.log("info", f"worker {slot.name} has an instance nobody wants: it is stopped")
            self._take_batches(slot, hello, is_wanted=False)
            self._welcome(slot, keep=False)
            self._fleet.stop_slot(slot)
            return
        self._welcome(slot, keep=True)
        world.at(
            world.now_ns + 2 * world.limits.absence_ns,
            partial(self._memory.sweep_leases, slot, hello.leases),
        )
        # It says LOADED again after the welcome, with the completed config: not before that is it
        # certain that the load had ended, unless it executes.
        self._loading.begin(slot, instance)
        self._take_batches(slot, hello, is_wanted=True)
        model = instance.model
        if slot.current is None or model.signature is None:
            return
        instance.move(InstanceState.READY)
        instance.move(InstanceState.BUSY)
        instance.has_served = True
        model.executing += len(slot.current.jobs)
        if model.state is ModelState.LOADING:
            model.move(ModelState.READY)
            world.forget_lookups()
        world.wake(model)

    def _take_batches(self, slot: Slot, hello: m.SlotHello, *, is_wanted: bool) -> None:
        """What a worker still has from an earlier broker: resent requests join it."""
        for held in hello.held:
            batch = Batch(held.id, slot, [None] * len(held.requests), 0, self._world.now_ns)
            batch.keys = list(held.requests)
            batch.rows = max(1, len(held.requests))
            if held.finished or not is_wanted:
                slot.held[held.id] = batch
            elif slot.current is None:
                slot.current = batch
                self._dispatch.predict(slot, batch, self._world.now_ns)
            else:
                slot.ahead.append(batch)

    def reconnected(self, slot: Slot, hello: m.SlotHello) -> None:
        """The same worker on a new connection: batches lost on the way are queued again."""
        self._welcome(slot, keep=not slot.stopping)
        instance = slot.instance
        # What was decided in this very turn goes out on the new connection: it is not lost.
        now_ns = self._world.now_ns
        is_loading = instance is not None and instance.state is InstanceState.LOADING
        if is_loading and not hello.instance and slot.loading_since_ns < now_ns:
            assert instance is not None
            self._loading.send(slot, instance)  # the first one was lost with the connection
        held = {batch.id for batch in hello.held}
        for arena in hello.arenas:
            slot.arenas[arena.id] = arena
        self._memory.sweep_leases(slot, hello.leases)
        lost = [one for one in slot.batches() if one.id not in held and one.sent_ns < now_ns]
        self._forget_lost_regions(slot, lost)
        again: list[Job] = []
        for batch in lost:
            if batch in slot.ahead:
                slot.ahead.remove(batch)
            again += self._dispatch.take_back(batch)
            if batch is slot.current:
                self._results.free(slot)
        self._dispatch.requeue_all(again)

    def _forget_lost_regions(self, slot: Slot, lost: list[Batch]) -> None:
        """What only lost batches told the worker of may be unknown to it: it is told anew."""

        def used(batches: Iterable[Batch]) -> set[int]:
            jobs = (job for batch in batches for job in batch.jobs if job is not None)
            return {ident for job in jobs for ident in job.regions()}

        kept = [batch for batch in slot.batches() if batch not in lost]
        doubtful = (used(lost) & slot.regions) - used(kept)
        if doubtful:
            slot.regions -= doubtful
            message = m.Forget(tuple(sorted(doubtful)))
            self._world.actions.append(TellSlot(slot.key, message, []))

    def _welcome(self, slot: Slot, keep: bool) -> None:
        message = m.SlotWelcome(self._world.incarnation, self._world.server, keep)
        self._world.actions.append(TellSlot(slot.key, message, []))


def _was_cancelled(result: m.BatchResult) -> bool:
    """Its worker left it out because an earlier broker said so: there is no result to join."""
    return result.error is not None and result.error[0] == Code.CANCELLED

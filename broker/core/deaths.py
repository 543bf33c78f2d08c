"""Workers die: what they had runs again or is judged, and what the death costs whom.

Only a readable pidfd is death (the shell's SlotDied). Whoever was not executing pays nothing;
suspects run alone; one that was alone at two deaths is a poison request. When an instance starts
again is decided elsewhere (see restarts).
"""

from __future__ import annotations

from typing import Final

from naiad.broker.core.answers import Answers
from naiad.broker.core.dispatch import Dispatch
from naiad.broker.core.endings import Endings
from naiad.broker.core.events import SaveState, SlotDied
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.instances import HOPELESS, Instance, InstanceState, Slot
from naiad.broker.core.job import Job, JobState
from naiad.broker.core.loading import Loading
from naiad.broker.core.models import ModelState
from naiad.broker.core.restarts import Cost, Restarts
from naiad.broker.core.statistics import count_reason
from naiad.broker.core.world import World
from naiad.protocol.errors import Code, RequestError, Unavailable

LOST: Final = "it was killed and does not die"
DEATHS_ALONE_MAX: Final = 2
"""A request that was executing alone at this many deaths is the cause of them."""


class Deaths:
    """Picks up the pieces."""

    def __init__(
        self,
        world: World,
        answers: Answers,
        dispatch: Dispatch,
        fleet: Fleet,
        endings: Endings,
        loading: Loading,
        restarts: Restarts,
    ) -> None:
        self._world = world
        self._answers = answers
        self._dispatch = dispatch
        self._fleet = fleet
        self._endings = endings
        self._loading = loading
        self._restarts = restarts

    def died(self, slot: Slot, event: SlotDied) -> None:
        """A worker is dead for certain: requeue what was not executing, judge what was."""
        world = self._world
        reason = event.reason
        world.slots.pop(slot.key, None)
        instance = slot.instance
        if instance is None:
            self._settle_jobs(slot, event)
            if slot.lost_of is not None:
                self._restarts.lost_died(slot.lost_of)
            self._loading.assign()
            self._fleet.want()
            return
        model = instance.model
        if slot in model.idle:
            model.idle.remove(slot)
        if slot.current is not None:
            model.executing -= len(slot.current.jobs)
        if not slot.stopping:
            count_reason(world.counters.worker_deaths, reason)
            count_reason(model.statistics.worker_deaths, reason)
            world.log(
                "warning", f"worker {slot.name} pid {slot.pid} ({instance.name}) died: {reason}"
            )
        was_idle = not slot.is_occupied
        guilty = self._settle_jobs(slot, event)
        instance.slot = None
        is_left = model.state is ModelState.UNLOADING and not len(model.queue)
        if instance.state is InstanceState.DRAINING or is_left:
            self._fleet.exit(instance)
            self._endings.check_retired()
        elif instance.state not in HOPELESS:
            self._restarts.restart(instance, reason, _cost(guilty, event.ordered and was_idle))
        world.wake(model)
        self._loading.assign()
        self._fleet.want()
        world.actions.append(SaveState())

    def load_failed(
        self, slot: Slot, instance: Instance, reason: str, *, may_fit_later: bool = False
    ) -> None:
        """The worker ends by itself. One that had served before is a death like any other.

        `may_fit_later`: its GPU has no room for it now. That is no fault of the model: the
        instances that serve go on without it.
        """
        slot.stopping = True
        slot.instance = None
        instance.slot = None
        if instance.state is InstanceState.DRAINING:
            self._fleet.exit(instance)
        elif instance.state is not InstanceState.LOADING:
            pass  # given up already
        elif may_fit_later and self._is_missed(instance):
            self._restarts.wait_for_room(instance, reason)
        elif instance.has_served and instance.model.state is not ModelState.UNLOADING:
            self._restarts.restart(instance, reason, Cost.BUDGET)
        else:
            instance.move(InstanceState.FATAL)
            self._endings.fail_version(instance.model, reason)
            if may_fit_later:
                self._restarts.retry_later(instance.model)
        self._loading.assign()
        self._fleet.want()

    def _is_missed(self, instance: Instance) -> bool:
        """Whether its model serves, or did, and wants it back."""
        model = instance.model
        is_served = instance.has_served or any(one.serves for one in model.instances)
        return is_served and model.state is not ModelState.UNLOADING

    def lost(self, slot: Slot) -> None:
        """A killed worker that does not die (the kernel waits for a disk or a device): its requests
        end, nobody may use their memory before it is dead, and another worker gets its instance."""
        world = self._world
        count_reason(world.counters.worker_deaths, LOST)
        world.log("error", f"worker {slot.name} pid {slot.pid} is LOST: {LOST}")
        batches = [*slot.batches(), *slot.held.values()]
        for job in [job for batch in batches for job in batch.jobs if job is not None]:
            if job.state is JobState.EARLY:
                world.uncount_early(job)
            if job.state is not JobState.ANSWERED:
                self._answers.abandon(job, _died(job, LOST))
        instance = slot.instance
        if instance is not None:
            count_reason(instance.model.statistics.worker_deaths, LOST)
            slot.lost_of = instance
            slot.instance = instance.slot = None
            if slot.current is not None:
                instance.model.executing -= len(slot.current.jobs)
            self._replace_lost(instance)
        self._loading.assign()
        self._fleet.want()
        world.actions.append(SaveState())

    def _replace_lost(self, instance: Instance) -> None:
        model = instance.model
        is_left = model.state is ModelState.UNLOADING and not len(model.queue)
        if instance.state is InstanceState.DRAINING or is_left:
            self._fleet.exit(instance)
            self._endings.check_retired()
        elif instance.state not in HOPELESS:
            self._restarts.replace_lost(instance, LOST)
        self._world.wake(model)

    # --- jobs --------------------------------------------------------------------------

    def _settle_jobs(self, slot: Slot, event: SlotDied) -> bool:
        """Requeue or fail what the dead worker had; True if it was a request's doing, as far as
        one can tell: poison, a truncated region, or a suspect that was alone."""
        guilty = False
        reason, truncated = event.reason, event.truncated
        again: list[Job] = []
        for batch in (*slot.batches(), *slot.held.values()):
            suspected = batch.id == event.executing
            begun = suspected or batch.id <= event.begun
            live = [job for job in batch.jobs if job is not None]
            alone = len(live) == 1 and not batch.keys
            for job in live:
                if job.state is JobState.ANSWERED:
                    guilty = (suspected and self._is_poison(job, alone)) or guilty
                    self._answers.release(job)
                    continue
                if job.state is JobState.EARLY:
                    self._world.uncount_early(job)
                if suspected and truncated and not job.regions().isdisjoint(truncated):
                    guilty = True
                    self._answers.fail(job, _truncated(job))
                elif suspected and self._is_poison(job, alone):
                    guilty = True
                    self._answers.fail(job, _poison(job, reason))
                elif begun and not job.retryable:
                    self._answers.withdraw(job, _died(job, reason))
                else:
                    guilty = guilty or (suspected and alone and job.suspect)
                    if suspected and not truncated:
                        job.suspect = True
                    if begun:
                        self._world.counters.reexecutions["worker_died"] += 1
                    again.append(job)
            if begun and batch.keys:
                self._world.counters.reexecutions["broker_restart"] += batch.jobs.count(None)
        slot.current = None
        slot.ahead.clear()
        slot.held.clear()
        self._dispatch.requeue_all(again)
        return guilty

    def _is_poison(self, job: Job, alone: bool) -> bool:
        """Whether this death, as its earlier one, was this request's doing."""
        if not alone:
            return False
        job.deaths_alone += 1
        if job.deaths_alone < DEATHS_ALONE_MAX:
            return False
        model = job.model
        self._world.counters.poison_requests += 1
        # The earlier death does not count against the model either.
        model.consecutive_deaths = max(0, model.consecutive_deaths - (job.deaths_alone - 1))
        return True


def _cost(guilty: bool, was_killed_idle: bool) -> Cost:
    """A model that freezes its worker, or hangs, is at fault; a machine that pauses is not."""
    if guilty:
        return Cost.NOTHING
    return Cost.PAUSE if was_killed_idle else Cost.BUDGET


def _poison(job: Job, reason: str) -> RequestError:
    return RequestError(
        f"poison request: the worker of '{job.model.name}' died {job.deaths_alone} times while it"
        f" executed this request alone, last: {reason}; do not send it again",
        code=Code.POISON_REQUEST,
    )


def _truncated(job: Job) -> RequestError:
    return RequestError(
        f"a shared memory region of this request for '{job.model.name}' was truncated while it was"
        " being read; keep regions at their registered size until the answer",
        code=Code.REGION_TRUNCATED,
    )


def _died(job: Job, reason: str) -> Unavailable:
    return Unavailable(
        f"the worker of '{job.model.name}' ended while it executed this request ({reason}), and the"
        " request may not be run twice",
        code=Code.WORKER_DIED,
    )

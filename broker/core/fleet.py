"""Worker processes and what happens when they come, load, fall silent and die.

Only a readable pidfd is death (the shell's SlotDied). Whoever was not executing pays nothing;
suspects run alone; one that was alone at two deaths is a poison request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from naiad.broker.core.answers import Answers, not_ready_error
from naiad.broker.core.dispatch import Dispatch
from naiad.broker.core.events import KillSlot, SaveState, SlotDied, TellSlot, TellSupervisor
from naiad.broker.core.instances import Instance, InstanceState, Slot
from naiad.broker.core.job import Job, JobState
from naiad.broker.core.models import UNLOADED, ModelState, ModelVersion
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.world import World
from naiad.config.model import ModelConfig
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable, WireError

Json = dict[str, Any]

DEATHS_ALONE_MAX: Final = 2
"""A request that was executing alone at this many deaths is the cause of them."""


class Fleet:
    """Gives instances to slots, and picks up the pieces."""

    def __init__(
        self,
        world: World,
        answers: Answers,
        dispatch: Dispatch,
        withdrawal: Withdrawal,
        settled: Callable[[ModelVersion], None],
    ) -> None:
        self._world = world
        self._answers = answers
        self._dispatch = dispatch
        self._withdrawal = withdrawal
        self._settled = settled
        """Called when a version became READY or UNAVAILABLE."""
        self._wanted: dict[str, m.Want] = {}

    # --- wanting and assigning ---------------------------------------------------------

    def want(self, again: bool = False) -> None:
        """Tell the supervisor how many slots each device needs, if that changed."""
        counts: dict[str, int] = {"cpu": 0}
        preload: dict[str, None] = {}
        for instance in self._world.instances.values():
            counts.setdefault(instance.device, 0)
            if instance.state not in (InstanceState.EXITED, InstanceState.FATAL):
                counts[instance.device] += 1
                preload[instance.model.config.backend] = None
        for device, count in counts.items():
            # Fewer is never an order to end one: while draining nobody is replaced.
            slots = 0 if self._world.draining else count + self._world.limits.spares
            wanted = m.Want(device, slots, tuple(preload))
            if again or self._wanted.get(device) != wanted:
                self._wanted[device] = wanted
                self._world.actions.append(TellSupervisor(wanted))

    def assign(self) -> None:
        """Give waiting instances to empty slots of their device."""
        world = self._world
        if world.recovering or world.draining:
            return
        empty = [slot for slot in world.slots.values() if slot.is_empty]
        if not empty:
            return
        for instance in list(world.instances.values()):
            if instance.state is not InstanceState.WAITING:
                continue
            slot = next((s for s in empty if s.device == instance.device), None)
            if slot is not None:
                empty.remove(slot)
                self._load(slot, instance)

    def _load(self, slot: Slot, instance: Instance) -> None:
        self.begin_load(slot, instance)
        self.send_load(slot, instance)
        self._world.actions.append(SaveState())

    def begin_load(self, slot: Slot, instance: Instance) -> None:
        """From now on the slot has this instance, and LOADED is waited for."""
        if instance.state is InstanceState.BACKOFF:
            instance.move(InstanceState.WAITING)
        instance.move(InstanceState.LOADING)
        instance.slot = slot
        slot.instance = instance
        slot.loading_since_ns = self._world.now_ns
        self._watch_load(slot, instance)

    def send_load(self, slot: Slot, instance: Instance) -> None:
        """Tell a slot what to load; again when a broken connection may have lost it."""
        model = instance.model
        message = m.Load(
            instance.id, model.name, model.version, instance.name, model.directory, instance.kind,
            instance.device_id, model.threads,
        )  # fmt: skip
        config = model.config_text().encode()
        self._world.actions.append(TellSlot(slot.key, message, [config]))

    def _watch_load(self, slot: Slot, instance: Instance) -> None:
        world = self._world
        limit_s = instance.model.config.naiad.load_timeout_s
        # By their numbers: the timer outlives most loads and must not keep their models.
        key, ident = slot.key, instance.id

        def overdue() -> None:
            loading = world.slots.get(key)
            late = None if loading is None else loading.instance
            if late is None or late.id != ident or late.state is not InstanceState.LOADING:
                return
            assert loading is not None
            reason = f"loading took longer than naiad.load_timeout_s = {limit_s} s"
            self._fail_version(late.model, reason)
            self.kill(loading, reason)

        world.at(world.now_ns + limit_s * 1_000_000_000, overdue)

    # --- slots come --------------------------------------------------------------------

    def opened(self, key: int, hello: m.SlotHello, pid: int) -> Slot:
        """A worker said hello: new, or back after a broken connection."""
        world = self._world
        known = world.slots.get(key)
        if known is not None:
            return known
        slot = world.slots[key] = Slot(key, hello, pid)
        return slot

    def loaded(
        self,
        slot: Slot,
        instance_id: int,
        error: WireError | None,
        load_ns: int,
        config: Json | None,
    ) -> None:
        """A worker answered LOAD: with the completed config, or why it could not."""
        instance = slot.instance
        if instance is None or instance.id != instance_id:
            return
        model = instance.model
        if error is not None:
            self._load_failed(slot, instance, error[1])
            return
        if instance.state is not InstanceState.LOADING:
            return
        model.load_ns = max(model.load_ns, load_ns)
        if model.signature is None and config is not None:
            try:
                model.complete(ModelConfig.from_json(config))
            except NaiadError as fault:
                self._load_failed(slot, instance, f"its completed configuration: {fault.message}")
                self.kill(slot, "its completed configuration cannot be used")
                return
        self._serve(slot, instance)

    def _load_failed(self, slot: Slot, instance: Instance, reason: str) -> None:
        """The worker ends by itself. One that had served before is a death like any other."""
        slot.stopping = True
        slot.instance = None
        instance.slot = None
        if instance.state is InstanceState.DRAINING:
            self._exit(instance)
        elif instance.state is not InstanceState.LOADING:
            pass  # given up already
        elif instance.has_served and instance.model.state is not ModelState.UNLOADING:
            self._restart(instance, reason, counts=True)
            self.assign()
        else:
            instance.move(InstanceState.FATAL)
            self._fail_version(instance.model, reason)
        self.want()

    def _serve(self, slot: Slot, instance: Instance) -> None:
        """A loaded instance joins in; one adopted from an earlier broker may be at work already."""
        model = instance.model
        instance.move(InstanceState.READY)
        instance.has_served = True
        if slot.current is None:
            model.idle.append(slot)
        else:
            instance.move(InstanceState.BUSY)
        self._world.wake(model)
        self._world.actions.append(SaveState())
        if model.state is ModelState.LOADING:
            model.attempts = 0
            model.move(ModelState.READY)
            self._world.forget_lookups()
        self._settled(model)

    def silent(self, slot: Slot) -> None:
        """The worker does not answer: give it nothing more until it is proven dead."""
        slot.silent = True
        if slot.instance is not None and slot in slot.instance.model.idle:
            slot.instance.model.idle.remove(slot)

    # --- slots die ---------------------------------------------------------------------

    def died(self, slot: Slot, event: SlotDied) -> None:
        """A worker is dead for certain: requeue what was not executing, judge what was."""
        world = self._world
        reason = event.reason
        world.slots.pop(slot.key, None)
        instance = slot.instance
        if instance is None:
            self._settle_jobs(slot, event)
            self.assign()
            self.want()
            return
        model = instance.model
        if slot in model.idle:
            model.idle.remove(slot)
        if slot.current is not None:
            model.executing -= len(slot.current.jobs)
        if not slot.stopping:
            world.counters.worker_deaths[reason] += 1
            world.log(
                "warning", f"worker {slot.name} pid {slot.pid} ({instance.name}) died: {reason}"
            )
        guilty = self._settle_jobs(slot, event)
        instance.slot = None
        is_left = model.state is ModelState.UNLOADING and not len(model.queue)
        if instance.state is InstanceState.DRAINING or is_left:
            self._exit(instance)
            self.check_retired()
        elif instance.state not in (InstanceState.FATAL, InstanceState.EXITED):
            self._restart(instance, reason, counts=not guilty and not event.ordered)
        world.wake(model)
        self.assign()
        self.want()
        world.actions.append(SaveState())

    def _exit(self, instance: Instance) -> None:
        """An instance that nobody wants has no process any more."""
        if instance.state is not InstanceState.EXITED:
            instance.move(InstanceState.EXITED)
        self._world.instances.pop(instance.id, None)

    def _restart(self, instance: Instance, reason: str, counts: bool) -> None:
        world = self._world
        model = instance.model
        instance.restarts += 1
        if counts:
            instance.deaths += 1
            model.consecutive_deaths += 1
        budget = model.config.naiad.crash_budget
        if model.consecutive_deaths >= budget:
            text = f"its worker died {model.consecutive_deaths} times in a row, last: {reason}"
            instance.move(InstanceState.FATAL)
            self._fail_version(model, text)
            self._retry_later(model)
        elif instance.deaths <= 1:
            instance.move(InstanceState.WAITING)
            instance.waiting_since_ns = world.now_ns
        else:
            instance.move(InstanceState.BACKOFF)
            delay_ns = world.limits.restart_first_ns * 2 ** min(instance.deaths - 2, 6)
            world.at(world.now_ns + delay_ns, lambda: self._wait_again(instance))

    def _wait_again(self, instance: Instance) -> None:
        if instance.state is InstanceState.BACKOFF:
            instance.move(InstanceState.WAITING)
            instance.waiting_since_ns = self._world.now_ns
            self.assign()
            self.want()

    def _retry_later(self, model: ModelVersion) -> None:
        """A model that keeps crashing is tried again by itself, ever more rarely."""
        world = self._world
        limits = world.limits
        model.attempts += 1
        delay_ns = min(
            limits.retry_first_ns * 2 ** min(model.attempts - 1, 16), limits.retry_last_ns
        )
        jitter = 0.8 + 0.4 * math.modf(model.generation * 0.618034 + model.attempts * 0.414214)[0]
        model.next_retry_ns = world.now_ns + int(delay_ns * jitter)
        world.at(model.next_retry_ns, lambda: self._retry(model))

    def _retry(self, model: ModelVersion) -> None:
        held = self._world.models.get(model.name)
        if held is None or held.versions.get(model.version) is not model or self._world.draining:
            return
        if model.state is not ModelState.UNAVAILABLE or model.reason == UNLOADED:
            return
        model.move(ModelState.LOADING, "trying again")
        model.next_retry_ns = 0
        model.consecutive_deaths = model.config.naiad.crash_budget - 1
        model.load_started_ns = self._world.now_ns
        for instance in model.instances:
            if instance.state is InstanceState.FATAL:
                instance.move(InstanceState.WAITING)
                instance.deaths = 0
        self.assign()
        self.want()

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
                    self._answers.release(job)
                    continue
                if job.state is JobState.EARLY:
                    job.model.queue.level(job.level).early -= 1
                    if job.deadline_ns:
                        self._world.deadlines.discard(job)
                if suspected and truncated and not job.regions().isdisjoint(truncated):
                    guilty = True
                    self._answers.fail(job, _truncated(job))
                elif suspected and self._judge(job, alone, reason):
                    guilty = True
                elif begun and not job.retryable:
                    self._answers.fail(job, _died(job, reason))
                else:
                    guilty = guilty or (suspected and alone and job.suspect)
                    if suspected and not truncated:
                        job.suspect = True
                    if begun:
                        self._world.counters.reexecutions["worker_died"] += 1
                    again.append(job)
            if begun and batch.keys:
                self._world.counters.reexecutions["broker_restart"] += batch.jobs.count(None)
        slot.current = slot.early = None
        slot.held.clear()
        self._dispatch.requeue_all(again)
        return guilty

    def _judge(self, job: Job, alone: bool, reason: str) -> bool:
        if not alone:
            return False
        job.deaths_alone += 1
        if job.deaths_alone < DEATHS_ALONE_MAX:
            return False
        model = job.model
        self._world.counters.poison_requests += 1
        # The earlier death was this request's doing as well: it does not count against the model.
        model.consecutive_deaths = max(0, model.consecutive_deaths - (job.deaths_alone - 1))
        self._answers.fail(
            job,
            RequestError(
                f"poison request: the worker of '{model.name}' died {job.deaths_alone} times while"
                f" it executed this request alone, last: {reason}; do not send it again",
                code=Code.POISON_REQUEST,
            ),
        )
        return True

    # --- ending ------------------------------------------------------------------------

    def _fail_version(self, model: ModelVersion, reason: str) -> None:
        """No instance of this version can be had: say so to everybody who waits for it.

        Also when it failed before or is unloading: what came back from a dead worker waits for it.
        """
        is_news = model.state in (ModelState.LOADING, ModelState.READY)
        if is_news:
            model.move(ModelState.UNAVAILABLE, reason)
            self._world.forget_lookups()
            self._world.log(
                "error", f"model {model.name} version {model.version} is UNAVAILABLE: {reason}"
            )
        self._withdrawal.fail_queued(model, not_ready_error(model, reason))
        for instance in model.instances:
            slot = instance.slot
            if slot is not None and instance.state is InstanceState.LOADING:
                instance.move(InstanceState.FATAL)
                self.kill(slot, "another instance of its model failed to load")
            elif slot is None and instance.state not in (InstanceState.FATAL, InstanceState.EXITED):
                instance.move(InstanceState.FATAL)
        if is_news:
            self._settled(model)
        self.want()

    def retire(self, model: ModelVersion) -> None:
        """Stop serving a version: what it has is finished, then its workers exit."""
        if model.state in (ModelState.READY, ModelState.LOADING, ModelState.UNAVAILABLE):
            model.move(ModelState.UNLOADING, "unloading")
        self._world.forget_lookups()
        if model not in self._world.retiring:
            self._world.retiring.append(model)
        for instance in model.instances:
            if instance.slot is None:
                self._exit(instance)
        if not any(one.slot is not None for one in model.instances):
            fault = Unavailable(f"model '{model.name}' was unloaded")
            self._withdrawal.fail_queued(model, fault)
        self.check_retired()

    def check_retired(self) -> None:
        """Stop the workers of retired versions that have nothing left to do."""
        world = self._world
        for model in list(world.retiring):
            if not is_drained(model):
                continue
            for instance in model.instances:
                if instance.slot is None:
                    self._exit(instance)
                elif not instance.slot.stopping:
                    self._stop(instance.slot, instance)
            if all(one.state is InstanceState.EXITED for one in model.instances):
                world.retiring.remove(model)
                model.instances = []  # each points back: end the cycle, nobody collects for hours
                model.move(ModelState.UNAVAILABLE, UNLOADED)
                world.log("info", f"model {model.name} version {model.version} is unloaded")
                world.actions.append(SaveState())
                self._settled(model)
        self.want()

    def _stop(self, slot: Slot, instance: Instance) -> None:
        if slot in instance.model.idle:
            instance.model.idle.remove(slot)
        slot.stopping = True
        if instance.state is not InstanceState.FATAL:
            instance.move(InstanceState.DRAINING)
        self.stop_slot(slot)

    def stop_slot(self, slot: Slot, *, brief: bool = False) -> None:
        """Tell a worker to exit, and see to it that it does; `brief`: nobody waits for its work."""
        slot.stopping = True
        limits = self._world.limits
        grace_ns = limits.unwanted_grace_ns if brief else limits.stop_grace_ns
        self._world.actions.append(TellSlot(slot.key, m.Stop(grace_ns // 1_000_000), []))

        key = slot.key

        def overdue() -> None:
            late = self._world.slots.get(key)
            if late is not None:
                self.kill(late, "it did not stop within its grace")

        self._world.at(self._world.now_ns + grace_ns, overdue)

    def kill(self, slot: Slot, reason: str) -> None:
        slot.stopping = True
        self._world.actions.append(KillSlot(slot.key, reason))


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


def _truncated(job: Job) -> RequestError:
    return RequestError(
        f"a shared memory region of this request for '{job.model.name}' was truncated while it was"
        " being read; keep regions at their registered size until the answer",
        code=Code.REGION_TRUNCATED,
    )


def _died(job: Job, reason: str) -> Unavailable:
    return Unavailable(
        f"the worker of '{job.model.name}' died while it executed this request ({reason}), and the"
        " request may not be run twice",
        code=Code.WORKER_DIED,
    )

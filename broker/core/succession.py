"""Which generation of a model serves: the incoming one once it is whole, the old one until then.

Owns the swap, which is one step, and the calls that wait for it. What is to be loaded is decided
elsewhere (see catalog), and so is when an instance or a version has failed (see deaths, endings).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from naiad.broker.core.endings import Endings
from naiad.broker.core.events import SaveState, SendReply
from naiad.broker.core.instances import InstanceState
from naiad.broker.core.models import UNLOADED, Call, Model, ModelState, ModelVersion
from naiad.broker.core.reach import only_on, sees
from naiad.broker.core.world import World
from naiad.protocol.errors import Code, ModelError, NaiadError, RequestError


class Succession:
    """Lets one generation follow the other."""

    def __init__(self, world: World, endings: Endings) -> None:
        self._world = world
        self._endings = endings

    def settled(self, model: Model, version: ModelVersion) -> None:
        """A version became READY or UNAVAILABLE, or one more of its instances is there."""
        if model.incoming.get(version.version) is version:
            if version.state is ModelState.UNAVAILABLE:
                self._give_up(model, version.reason)
            else:
                self._try_swap(model)
        elif model.versions.get(version.version) is version and not model.incoming:
            self.settle_serving(model)

    def _try_swap(self, model: Model) -> None:
        """Swap once every instance is there."""
        incoming = model.incoming.values()
        if all(one.state is ModelState.READY for one in incoming) and self._are_whole(model):
            self.swap(model)

    def _are_whole(self, model: Model) -> bool:
        """Whether every instance of the newest generation serves, or only lacks a slot for too
        long. If it is too early to tell, the generation is looked at again."""
        waited_ns = self._world.now_ns - model.incoming_since_ns
        patience_ns = self._world.limits.slot_wait_ns
        for version in (model.incoming or model.versions).values():
            missing = [one for one in version.instances if not one.serves]
            if any(one.state is InstanceState.LOADING for one in missing):
                return False
            if missing and waited_ns < patience_ns:
                when_ns = model.incoming_since_ns + patience_ns
                self._world.at(when_ns, partial(self._look_again, model, version.generation))
                return False
        return True

    def _look_again(self, model: Model, generation: int) -> None:
        if any(one.generation == generation for one in model.incoming.values()):
            self._try_swap(model)
        elif any(one.generation == generation for one in model.versions.values()):
            self.settle_serving(model)

    def swap(self, model: Model) -> None:
        """The incoming generation serves from here on; what is there of an old one drains."""
        old = list(model.versions.values())
        model.versions = model.incoming
        model.override = model.incoming_override
        model.incoming = {}
        self._world.forget_lookups()
        for version in old:
            self._move_queue(version, model)
            if version.state is not ModelState.UNLOADING and version.reason != UNLOADED:
                self._endings.retire(version)
        if all(version.state is ModelState.READY for version in model.versions.values()):
            self.settle_serving(model)
        self._world.actions.append(SaveState())

    def _move_queue(self, old: ModelVersion, model: Model) -> None:
        """Requests that the old generation had not begun go to the new one where they still fit."""
        new = model.versions.get(old.version) or model.newest()
        if new is None or new.signature is None:
            return
        for job in list(old.queue.jobs()):
            if job.request.version >= 0 and job.request.version != new.version:
                continue
            try:
                rows, key = new.signature.check(job.request)
            except RequestError:
                continue
            if not sees(new, job.gpu):
                continue
            old.queue.remove(job)
            job.model = new
            job.rows = rows
            job.key = key
            job.only_on = only_on(new, job.gpu)
            job.level = new.level_policy(job.priority).rank
            if job.suspect:
                new.queue.push_front(job)
            else:
                new.queue.push(job)
        self._world.wake(new)

    def _give_up(self, model: Model, reason: str) -> None:
        failed = model.incoming
        model.incoming = {}
        model.failure = failed_reload(reason)
        for version in failed.values():
            self._endings.retire(version)
        self.answer(model, _load_error(model.name, min(failed), reason))

    def settle_serving(self, model: Model) -> None:
        """Answer the calls that wait for what serves, once it can be told how it went."""
        if model.incoming:
            return  # the calls are about those
        states = {version.state for version in model.versions.values()}
        if ModelState.LOADING in states or not model.calls:
            return
        broken = next(
            (one for one in model.versions.values() if one.state is ModelState.UNAVAILABLE), None
        )
        if broken is not None:
            self.answer(model, _load_error(model.name, broken.version, broken.reason))
        elif self._are_whole(model):
            self.answer(model, None)

    def answer(self, model: Model, fault: NaiadError | None) -> None:
        """End the calls that wait for this model; no fault: they succeeded."""
        calls, model.calls = model.calls, []
        reply(self._world, calls, fault)


def reply(world: World, calls: Sequence[Call], fault: NaiadError | None) -> None:
    """Answer these calls; no fault: they succeeded."""
    for call in calls:
        world.actions.append(SendReply(*call, fault, {} if fault is None else None))


def failed_reload(reason: str) -> str:
    """What the index says of a model that serves and could not be loaded again."""
    return f"last load failed: {reason}"


def _load_error(name: str, version: int, reason: str) -> ModelError:
    return ModelError(
        f"load failed for model '{name}': version {version} is at UNAVAILABLE state: {reason};",
        code=Code.LOAD_FAILED,
    )

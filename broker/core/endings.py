"""Versions that serve no more: their instances cannot be had, or nobody wants them.

Owns what that means for everybody who waits, and for the workers: a retired version finishes what
it has. Which version ends is decided by others (see catalog, loading and deaths).
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.broker.core.answers import not_ready_error
from naiad.broker.core.events import SaveState
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.instances import Instance, InstanceState, Slot
from naiad.broker.core.models import UNLOADED, ModelState, ModelVersion
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.world import World
from naiad.protocol.errors import Unavailable


class Endings:
    """Ends versions of models."""

    def __init__(
        self,
        world: World,
        withdrawal: Withdrawal,
        fleet: Fleet,
        settled: Callable[[ModelVersion], None],
    ) -> None:
        self._world = world
        self._withdrawal = withdrawal
        self._fleet = fleet
        self._settled = settled
        """Called when a version became UNAVAILABLE."""

    def fail_version(self, model: ModelVersion, reason: str) -> None:
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
                self._fleet.kill(slot, "another instance of its model failed to load")
            elif slot is None and instance.state not in (InstanceState.FATAL, InstanceState.EXITED):
                instance.move(InstanceState.FATAL)
        if is_news:
            self._settled(model)
        self._fleet.want()

    def retire(self, model: ModelVersion) -> None:
        """Stop serving a version: what it has is finished, then its workers exit."""
        if model.state in (ModelState.READY, ModelState.LOADING, ModelState.UNAVAILABLE):
            model.move(ModelState.UNLOADING, "unloading")
        self._world.forget_lookups()
        if model not in self._world.retiring:
            self._world.retiring.append(model)
        for instance in model.instances:
            if instance.slot is None:
                self._fleet.exit(instance)
        fault = Unavailable(f"model '{model.name}' was unloaded")
        self._withdrawal.fail_stranded(model, fault)
        self.check_retired()

    def check_retired(self) -> None:
        """Stop the workers of retired versions that have nothing left to do."""
        world = self._world
        for model in list(world.retiring):
            if not _is_drained(model):
                continue
            for instance in model.instances:
                if instance.slot is None:
                    self._fleet.exit(instance)
                elif not instance.slot.stopping:
                    self._stop(instance.slot, instance)
            if all(one.state is InstanceState.EXITED for one in model.instances):
                world.retiring.remove(model)
                model.instances = []  # each points back: end the cycle, nobody collects for hours
                model.move(ModelState.UNAVAILABLE, UNLOADED)
                world.log("info", f"model {model.name} version {model.version} is unloaded")
                world.actions.append(SaveState())
                self._settled(model)
        self._fleet.want()

    def _stop(self, slot: Slot, instance: Instance) -> None:
        if slot in instance.model.idle:
            instance.model.idle.remove(slot)
        slot.stopping = True
        # A load may take for ever, and nobody waits for it any more.
        is_loading = instance.state is InstanceState.LOADING
        if instance.state is not InstanceState.FATAL:
            instance.move(InstanceState.DRAINING)
        self._fleet.stop_slot(slot, brief=is_loading)


def _is_drained(model: ModelVersion) -> bool:
    """Nothing of this version is queued or running."""
    return (
        model.state is not ModelState.READY
        and not len(model.queue)
        and all(
            one.slot is None or (one.slot.current is None and not one.slot.ahead)
            for one in model.instances
        )
    )

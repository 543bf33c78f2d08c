"""Instances into slots: what is loaded where, until it serves.

Owns the assignment of waiting instances to empty slots and the time limit of a load. A load that
failed is a death (see deaths).
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.broker.core.endings import Endings
from naiad.broker.core.events import SaveState, TellSlot
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.instances import Instance, InstanceState, Slot
from naiad.broker.core.models import ModelState, ModelVersion
from naiad.broker.core.world import World
from naiad.config.gpus import is_gpu
from naiad.protocol import messages as m


class Loading:
    """Gives instances to slots."""

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        endings: Endings,
        settled: Callable[[ModelVersion], None],
        *,
        auto_complete: bool = True,
    ) -> None:
        self._world = world
        self._auto_complete = auto_complete
        self._fleet = fleet
        self._endings = endings
        self._settled = settled
        """Called when an instance of a version serves."""

    def assign(self) -> None:
        """Give waiting instances to empty slots of their device."""
        world = self._world
        if world.recovering or world.draining:
            return
        empty = [slot for slot in world.slots.values() if slot.is_empty]
        if not empty:
            return
        instances = list(world.instances.values())
        filling = {one.device for one in instances if self._fills(one)}
        for instance in instances:
            if instance.state is not InstanceState.WAITING:
                continue
            if instance.device in filling and not instance.has_served:
                continue
            slot = next((s for s in empty if s.device == instance.device), None)
            if slot is not None:
                empty.remove(slot)
                self._load(slot, instance)
                if self._fills(instance):
                    filling.add(instance.device)

    def _fills(self, instance: Instance) -> bool:
        """Whether it takes GPU memory for the first time now.

        One instance at a time does so on a GPU: only then it is known what it took, and two that
        look at the same free memory do not both rely on it. What has served before comes back at
        once, and one that takes very long is not waited for.
        """
        if not is_gpu(instance.device) or instance.has_served:
            return False
        if instance.state is not InstanceState.LOADING or instance.slot is None:
            return False
        return self._world.now_ns < instance.slot.loading_since_ns + self._world.limits.turn_ns

    def _load(self, slot: Slot, instance: Instance) -> None:
        self.begin(slot, instance)
        self.send(slot, instance)
        self._world.actions.append(SaveState())

    def begin(self, slot: Slot, instance: Instance) -> None:
        """From now on the slot has this instance, and LOADED is waited for."""
        if instance.state is InstanceState.BACKOFF:
            instance.move(InstanceState.WAITING)
        instance.move(InstanceState.LOADING)
        instance.slot = slot
        slot.instance = instance
        slot.loading_since_ns = self._world.now_ns
        if self._fills(instance):
            self._world.at(self._world.now_ns + self._world.limits.turn_ns, self.assign)
        self._watch(slot, instance)

    def send(self, slot: Slot, instance: Instance) -> None:
        """Tell a slot what to load; again when a broken connection may have lost it."""
        model = instance.model
        message = m.Load(
            instance.id, model.name, model.version, instance.name, model.directory, instance.kind,
            instance.device_id, model.threads, self._auto_complete, model.gpu_bytes,
        )  # fmt: skip
        config = model.config_text().encode()
        self._world.actions.append(TellSlot(slot.key, message, [config]))

    def _watch(self, slot: Slot, instance: Instance) -> None:
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
            self._endings.fail_version(late.model, reason)
            self._fleet.kill(loading, reason)

        world.at(world.now_ns + limit_s * 1_000_000_000, overdue)

    def succeeded(self, slot: Slot, instance: Instance) -> None:
        """A loaded instance joins in; one adopted from an earlier broker may be at work already."""
        model = instance.model
        instance.move(InstanceState.READY)
        instance.has_served = True
        instance.tries_without_room = 0
        instance.no_room = ""
        if slot.current is None:
            model.idle.append(slot)
        else:
            instance.move(InstanceState.BUSY)
        self._world.wake(model)
        self._world.actions.append(SaveState())
        if model.state is ModelState.LOADING:
            model.move(ModelState.READY)
            self._world.forget_lookups()
            self._world.log("info", f"model {model.name} version {model.version} is READY")
        self._settled(model)

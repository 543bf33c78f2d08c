"""The worker processes: how many there shall be, and which of them must end.

Owns what the supervisor is asked for and the orders to stop or kill. What a worker loads, and what
its death means, is decided elsewhere (see loading and deaths).
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.broker.core.events import KillSlot, TellSlot, TellSupervisor
from naiad.broker.core.instances import HOPELESS, Instance, InstanceState, Slot
from naiad.broker.core.world import World
from naiad.protocol import messages as m


class Fleet:
    """Wants slots, and stops them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._wanted: dict[str, m.Want] = {}
        self.when_lost: Callable[[Slot], None]
        """Called with a worker that was killed and does not die."""

    def want(self, again: bool = False) -> None:
        """Tell the supervisor how many slots each device needs, if that changed."""
        counts: dict[str, int] = {"cpu": 0}
        preload: dict[str, None] = {}
        for instance in self._world.instances.values():
            counts.setdefault(instance.device, 0)
            if instance.state not in HOPELESS:
                counts[instance.device] += 1
                preload[instance.model.config.backend] = None
        for device, lost in self._lost().items():
            counts[device] = counts.get(device, 0) + lost
        for device in dict.fromkeys((*counts, *self._world.gpus, *self._wanted)):
            # Fewer is never an order to end one: while draining nobody is replaced, and on a GPU
            # that no model is for (any more, also to an earlier broker) nobody comes back.
            is_unwanted = self._world.draining or device not in counts
            slots = 0 if is_unwanted else counts[device] + self._world.limits.spares
            wanted = m.Want(device, slots, tuple(preload))
            if again or self._wanted.get(device) != wanted:
                self._wanted[device] = wanted
                self._world.actions.append(TellSupervisor(wanted))

    def _lost(self) -> dict[str, int]:
        """Processes by device that the supervisor counts and nobody can use. Of those that were
        nobody's only so many: each keeps its memory, and no instance bounds them."""
        lost: dict[str, int] = {}
        spares: dict[str, int] = {}
        for slot in self._world.slots.values():
            if slot.is_lost:
                found = lost if slot.lost_of is not None else spares
                found[slot.device] = found.get(slot.device, 0) + 1
        for device, count in spares.items():
            bounded = min(count, self._world.limits.lost_workers_max)
            lost[device] = lost.get(device, 0) + bounded
        return lost

    def silent(self, slot: Slot, *, is_killed: bool) -> None:
        """The worker does not answer: give it nothing more until it is proven dead."""
        slot.silent = True
        if is_killed:
            self._expect_death(slot)
        if slot.instance is not None and slot in slot.instance.model.idle:
            slot.instance.model.idle.remove(slot)

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
        """End a worker that nobody needs."""
        slot.stopping = True
        self.fence(slot, reason)

    def fence(self, slot: Slot, reason: str) -> None:
        """SIGKILL; until the worker is proven dead nothing it has is given to anybody."""
        self.silent(slot, is_killed=True)
        self._world.actions.append(KillSlot(slot.key, reason))

    def _expect_death(self, slot: Slot) -> None:
        key = slot.key

        def look() -> None:
            late = self._world.slots.get(key)
            if late is not None and not late.is_lost:
                late.is_lost = True
                self.when_lost(late)

        self._world.at(self._world.now_ns + self._world.limits.kill_ns, look)

    def exit(self, instance: Instance) -> None:
        """An instance that nobody wants has no process any more."""
        if instance.state is not InstanceState.EXITED:
            instance.move(InstanceState.EXITED)
        self._world.instances.pop(instance.id, None)

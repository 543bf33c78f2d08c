"""What workers say, and what is known of their processes.

One event concerns several parts; which, and in what order, is decided here. The parts own the rest.
"""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.broker.core.deaths import Deaths
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.instances import InstanceState, Slot
from naiad.broker.core.loading import Loading
from naiad.broker.core.recovery import Recovery
from naiad.broker.core.results import Results
from naiad.broker.core.world import World
from naiad.config.model import ModelConfig


class WorkerEvents:
    """One method per event of a worker; those of slots that are gone are ignored."""

    def __init__(
        self,
        world: World,
        results: Results,
        fleet: Fleet,
        loading: Loading,
        deaths: Deaths,
        recovery: Recovery,
    ) -> None:
        self._world = world
        self._results = results
        self._fleet = fleet
        self._loading = loading
        self._deaths = deaths
        self._recovery = recovery

    def slot_opened(self, event: e.SlotOpened) -> None:
        """A worker said hello: new, or back after a broken connection."""
        if self._recovery.is_condemned(event.slot):
            return
        world = self._world
        slot = world.slots.get(event.slot)
        if slot is None:
            slot = world.slots[event.slot] = Slot(event.slot, event.hello, event.pid)
            self._recovery.adopt(slot, event.hello)
        elif slot.silent:
            return
        else:
            self._recovery.reconnected(slot, event.hello)
        self._recovery.heard(slot.key)
        self._loading.assign()
        world.actions.append(e.SaveState())

    def slot_silent(self, event: e.SlotSilent) -> None:
        slot = self._world.slots.get(event.slot)
        if slot is not None:
            self._fleet.silent(slot, is_killed=event.is_killed)

    def slot_died(self, event: e.SlotDied) -> None:
        self._recovery.heard(event.slot)
        slot = self._world.slots.get(event.slot)
        if slot is not None:
            self._deaths.died(slot, event)

    def instance_loaded(self, event: e.InstanceLoaded) -> None:
        """A worker answered LOAD: with the completed config, or why it could not."""
        slot = self._world.slots.get(event.slot)
        instance = None if slot is None else slot.instance
        if slot is None or instance is None or instance.id != event.instance:
            return
        model = instance.model
        if event.error is not None:
            _, reason, is_retryable = event.error
            self._deaths.load_failed(slot, instance, reason, may_fit_later=is_retryable)
            return
        if instance.state is not InstanceState.LOADING:
            return
        model.load_ns = max(model.load_ns, event.load_ns)
        model.gpu_bytes = max(model.gpu_bytes, event.gpu_bytes)
        if model.signature is None and event.config is not None:
            try:
                model.complete(ModelConfig.from_json(event.config))
            except Exception as raised:
                fault = self._world.blame(raised, "reading its completed configuration")
                reason = f"its completed configuration: {fault.message}"
                self._deaths.load_failed(slot, instance, reason)
                self._fleet.kill(slot, "its completed configuration cannot be used")
                return
        self._loading.succeeded(slot, instance)
        self._loading.assign()

    def batch_finished(self, event: e.BatchFinished) -> None:
        slot = self._world.slots.get(event.slot)
        if slot is not None and not slot.is_lost:
            self._results.finished(slot, event.results, event.frames)

    def batches_given_back(self, event: e.BatchesGivenBack) -> None:
        slot = self._world.slots.get(event.slot)
        if slot is not None and not slot.is_lost:
            self._results.given_back(slot, event.batches)

    def room_was_short(self, event: e.RoomWasShort) -> None:
        self._world.counters.inline_fallbacks += event.outputs

"""When an instance whose worker ended starts again, and when it is given up.

Owns the crash budget, the pauses between restarts, the later retries of a model that was given up,
and the bound on workers that do not die. Never looks at a request: what a death costs is judged
elsewhere (see deaths).
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from naiad.broker.core.endings import Endings
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.instances import HOPELESS, Instance, InstanceState
from naiad.broker.core.loading import Loading
from naiad.broker.core.models import UNLOADED, ModelState, ModelVersion
from naiad.broker.core.shortages import too_many_lost
from naiad.broker.core.world import World

PAUSE_DOUBLINGS_MAX: Final = 6
RETRY_DOUBLINGS_MAX: Final = 16
"""More would be above any `retry_last_ns`, and a large number."""


class Cost(Enum):
    """What a death costs the instance and its model."""

    NOTHING = "a request's doing: it fails, the model goes on at once"
    PAUSE = "nobody's doing: each in a row waits longer, but no model is given up for it"
    BUDGET = "perhaps the model's doing: as PAUSE, and too many in a row make it UNAVAILABLE"


class Restarts:
    """Sends instances back into the rota, at once or later."""

    def __init__(self, world: World, fleet: Fleet, endings: Endings, loading: Loading) -> None:
        self._world = world
        self._fleet = fleet
        self._endings = endings
        self._loading = loading

    def restart(self, instance: Instance, reason: str, cost: Cost) -> None:
        """Its worker is gone, for this reason; the caller assigns slots and says what is wanted."""
        world = self._world
        model = instance.model
        instance.restarts += 1
        if cost is not Cost.NOTHING:
            instance.deaths += 1
        if cost is Cost.BUDGET:
            model.consecutive_deaths += 1
        if model.consecutive_deaths >= model.config.naiad.crash_budget:
            text = f"its worker died {model.consecutive_deaths} times in a row, last: {reason}"
            instance.move(InstanceState.FATAL)
            self._endings.fail_version(model, text)
            self.retry_later(model)
        elif instance.deaths <= 1:
            instance.move(InstanceState.WAITING)
        else:
            instance.move(InstanceState.BACKOFF)
            doublings = min(instance.deaths - 2, PAUSE_DOUBLINGS_MAX)
            delay_ns = world.limits.restart_first_ns * 2**doublings
            world.at(world.now_ns + delay_ns, lambda: self._wait_again(instance))

    def _wait_again(self, instance: Instance) -> None:
        if instance.state is InstanceState.BACKOFF:
            instance.move(InstanceState.WAITING)
            self._loading.assign()
            self._fleet.want()

    def wait_for_room(self, instance: Instance, reason: str) -> None:
        """Somebody may leave its GPU: tried again ever more rarely."""
        world = self._world
        limits = world.limits
        doublings = min(instance.tries_without_room, RETRY_DOUBLINGS_MAX)
        delay_ns = min(limits.retry_first_ns * 2**doublings, limits.retry_last_ns)
        instance.tries_without_room += 1
        instance.no_room = reason
        instance.move(InstanceState.BACKOFF)
        world.log(
            "error",
            f"{instance.name} does not serve: {reason}; trying again in {delay_ns // 10**9} s",
        )
        world.at(world.now_ns + delay_ns, lambda: self._wait_again(instance))

    # --- a model that was given up -------------------------------------------------------

    def retry_later(self, model: ModelVersion) -> None:
        """A model that keeps crashing is tried again by itself, ever more rarely."""
        world = self._world
        limits = world.limits
        doublings = min(model.attempts, RETRY_DOUBLINGS_MAX)
        delay_ns = min(limits.retry_first_ns * 2**doublings, limits.retry_last_ns)
        model.attempts += 1
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
        for instance in model.instances:
            if instance.state is InstanceState.FATAL and not self._has_too_many_lost(instance):
                instance.move(InstanceState.WAITING)
                instance.deaths = 0
        self._loading.assign()
        self._fleet.want()

    # --- workers that do not die ---------------------------------------------------------

    def replace_lost(self, instance: Instance, reason: str) -> None:
        """Its worker is LOST and keeps what it has; another one, unless there are too many such."""
        instance.move(InstanceState.LOST)
        if not self._has_too_many_lost(instance):
            self.restart(instance, reason, Cost.PAUSE)
            return
        model = instance.model
        text = too_many_lost(self._world)
        self._world.log("error", f"{instance.name} does not serve: {text}")
        instance.move(InstanceState.FATAL)
        if all(one.state in HOPELESS for one in model.instances):
            self._endings.fail_version(model, text)

    def lost_died(self, instance: Instance) -> None:
        """One of its LOST workers is dead: there is room for another."""
        model = instance.model
        if instance.state is not InstanceState.FATAL:
            return
        if model.state in (ModelState.LOADING, ModelState.READY):
            instance.move(InstanceState.WAITING)
        elif model.reason == too_many_lost(self._world):
            self._retry(model)

    def _has_too_many_lost(self, instance: Instance) -> bool:
        slots = self._world.slots.values()
        count = sum(slot.is_lost and slot.lost_of is instance for slot in slots)
        return count >= self._world.limits.lost_workers_max

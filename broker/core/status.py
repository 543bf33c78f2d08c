"""What `naiad status` shows: the server, models, instances, clients, counters. Reads only."""

from __future__ import annotations

from typing import Any

from naiad.broker.core.models import Model, ModelVersion
from naiad.broker.core.queries import Queries
from naiad.broker.core.shortages import why_not_whole
from naiad.broker.core.world import World

Json = dict[str, Any]


class Status:
    """Answers the operation `status`."""

    def __init__(self, world: World, queries: Queries) -> None:
        self._world = world
        self._queries = queries

    def status(self) -> Json:
        """All of it at once."""
        world = self._world
        return {
            "server": self._queries.server(),
            "models": self._models(),
            "instances": self._instances(),
            "sessions": [
                {
                    "id": f"{one.key:x}",
                    "role": one.role,
                    "pid": one.pid,
                    "connected": one.connected,
                    "in_flight": len(one.jobs),
                    "inline_bytes": one.bytes,
                    "regions": len(one.regions),
                    "leases": len(one.leases),
                }
                for one in world.sessions.values()
            ],
            "counters": world.counters.to_json(),
        }

    def _models(self) -> list[Json]:
        models = self._world.models.values()
        rows = [self._model(model, one) for model in models for one in model.all_versions()]
        return rows + [
            {"name": one.name, "version": None, "state": "UNAVAILABLE", "reason": one.failure}
            for one in models
            if not one.versions and one.failure
        ]

    def _model(self, model: Model, version: ModelVersion) -> Json:
        now_ns = self._world.now_ns
        oldest_ns = version.queue.oldest_ns()
        reason = version.reason or model.failure or why_not_whole(self._world, version)
        return {
            "name": version.name,
            "version": version.version,
            "state": str(version.state),
            "ready": version.is_ready,
            "reason": reason,
            "instances": len(version.instances),
            "instances_ready": sum(1 for one in version.instances if one.serves),
            "queued": version.queue.waiting,
            "executing": version.executing,
            "oldest_pending_s": (now_ns - oldest_ns) / 1e9 if oldest_ns else 0.0,
            "restarts": sum(one.restarts for one in version.instances),
            "load_s": version.load_ns / 1e9,
            "next_retry_s": max(0, version.next_retry_ns - now_ns) / 1e9,
            "backend": version.config.backend,
        }

    def _instances(self) -> list[Json]:
        world = self._world
        rows = []
        for instance in world.instances.values():
            slot = instance.slot
            running = slot.current if slot is not None else None
            rows.append(
                {
                    "name": instance.name,
                    "model": instance.model.name,
                    "version": instance.model.version,
                    "device": instance.device,
                    "state": str(instance.state),
                    "restarts": instance.restarts,
                    "slot": slot.name if slot else "",
                    "pid": slot.pid if slot else 0,
                    "executing_s": (world.now_ns - running.start_ns) / 1e9 if running else 0.0,
                }
            )
        for slot in world.slots.values():
            if slot.instance is None:
                state = "LOST" if slot.silent else "EXITED" if slot.stopping else "SPARE"
                rows.append(
                    {
                        "name": "",
                        "model": "",
                        "version": None,
                        "device": slot.device,
                        "state": state,
                        "restarts": 0,
                        "slot": slot.name,
                        "pid": slot.pid,
                        "executing_s": 0.0,
                    }
                )
        return rows

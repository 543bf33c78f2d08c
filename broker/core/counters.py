"""Raw counters for whoever shows them: models a piece at a time, so that no answer takes long.

Reads only. Sums and buckets as they are counted; what they are called, and what is computed from
them, is the reader's. The first answer has the server's own; then the reader asks `after` what
`next` says, until that is null.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

from naiad.broker.core.instances import Instance, InstanceState
from naiad.broker.core.models import UNLOADED, Model, ModelState, ModelVersion
from naiad.broker.core.queries import Queries
from naiad.broker.core.statistics import TIME_BOUNDS_NS
from naiad.broker.core.world import World
from naiad.config.gpus import uuid_of

Json = dict[str, Any]

MODELS_MAX: Final = 64
"""In one answer, whatever is asked for."""
FIGURES_MAX: Final = 600
"""In one answer, about; a model that has more goes alone. A figure costs some 0.7 µs."""
FIGURES_OF_A_VERSION: Final = 80
FIGURES_OF_A_BATCH_SIZE: Final = 5
FIGURES_OF_AN_INSTANCE: Final = 7


class Counters:
    """Answers the operation `counters`."""

    def __init__(self, world: World, queries: Queries) -> None:
        self._world = world
        self._queries = queries

    def piece(self, after: str | None, limit: int) -> Json:
        """The server's own (None), or at most `limit` models whose names follow `after`, in order.

        All times are nanoseconds.
        """
        if after is None:
            return {"server": self._server(), "next": ""}
        models = self._world.models
        limit = max(1, min(limit, MODELS_MAX))
        names = heapq.nsmallest(limit + 1, (name for name in models if name > after))
        rows: list[Json] = []
        figures = 0
        last = ""
        for name in names[:limit]:
            shown = _shown(models[name])
            figures += sum(map(_figures, shown))
            if last and figures > FIGURES_MAX:
                break
            rows += [self._version(one) for one in shown]
            last = name
        return {"models": rows, "next": last if names and last != names[-1] else None}

    def _server(self) -> Json:
        world = self._world
        waiting: dict[str, int] = {}
        for instance in world.instances.values():
            count = waiting.setdefault(instance.device, 0)
            waiting[instance.device] = count + (instance.state is InstanceState.WAITING)
        return {
            **self._queries.server(),
            "gpus": [uuid_of(device) for device in world.gpus],
            "waiting_instances": waiting,
            "counters": world.counters.to_json(),
            "time_bounds_ns": TIME_BOUNDS_NS,
        }

    def _version(self, version: ModelVersion) -> Json:
        oldest_ns = version.queue.oldest_ns()
        counted = version.statistics
        policy = version.batch_policy
        return {
            "name": version.name,
            "version": version.version,
            "generation": version.generation,
            "state": str(version.state),
            "ready": version.is_ready,
            "rows_max": policy.rows_max if policy.batching else 1,
            "pending": version.queue.waiting,
            "oldest_pending_ns": self._world.now_ns - oldest_ns if oldest_ns else 0,
            "executing": version.executing,
            "load_ns": version.load_ns,
            "gpu_bytes": version.gpu_bytes,
            "success_count": counted.success_count,
            "success_ns": counted.success_ns,
            "failures": counted.failures,
            "inference_count": counted.inference_count,
            "execution_count": counted.execution_count,
            "queue_ns": counted.queue_ns,
            "compute_input_ns": counted.compute_input_ns,
            "compute_infer_ns": counted.compute_infer_ns,
            "compute_output_ns": counted.compute_output_ns,
            "request_times": counted.request_times,
            "queue_times": counted.queue_times,
            "compute_times": counted.compute_times,
            "batches": [
                (rows, one.count, one.input_ns, one.infer_ns, one.output_ns)
                for rows, one in counted.batches.items()
            ],
            "batch_reasons": counted.batch_reasons,
            "worker_deaths": counted.worker_deaths,
            "instances": [self._instance(one) for one in version.instances],
        }

    def _instance(self, instance: Instance) -> Json:
        slot = instance.slot
        running = slot.current if slot is not None else None
        return {
            "name": instance.name,
            "id": instance.id,
            "serves": instance.serves,
            "pid": slot.pid if slot is not None else 0,
            "restarts": instance.restarts,
            "busy_ns": instance.busy_ns,
            "executing_ns": self._world.now_ns - running.start_ns if running is not None else 0,
        }


def _shown(model: Model) -> list[ModelVersion]:
    """Versions that have been wanted and not been unloaded; not the ones still coming."""
    return [
        one
        for one in model.versions.values()
        if not (one.state is ModelState.UNAVAILABLE and one.reason == UNLOADED)
    ]


def _figures(version: ModelVersion) -> int:
    return (
        FIGURES_OF_A_VERSION
        + FIGURES_OF_A_BATCH_SIZE * len(version.statistics.batches)
        + FIGURES_OF_AN_INSTANCE * len(version.instances)
    )

"""What the broker tells about itself and its models: health, metadata, statistics, index.

Reads only. What people look at (`naiad status`) is status'.
"""

from __future__ import annotations

from typing import Any, Final

from naiad.broker.core.admission import Admission
from naiad.broker.core.catalog import Catalog
from naiad.broker.core.models import UNLOADED, Model, ModelState
from naiad.broker.core.world import World
from naiad.config.model import TensorConfig
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import ANY_VERSION

Json = dict[str, Any]

CUDA_EXTENSION: Final = "cuda_shared_memory"
"""Only of a server with GPUs."""
EXTENSIONS: Final = [
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    CUDA_EXTENSION,
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
]


class Queries:
    """One method per question; RequestError for what is not there."""

    def __init__(
        self,
        world: World,
        catalog: Catalog,
        admission: Admission,
        software: str,
        *,
        identity: str = "",
        strict_readiness: bool = True,
    ) -> None:
        self._world = world
        self._catalog = catalog
        self._admission = admission
        self._software = software
        self._identity = identity or world.server
        self._is_strict = strict_readiness

    def is_ready(self) -> bool:
        """Every model that should serve does; a failed reload of a serving model does not count.

        Where readiness is not strict, it is enough that all of the start have settled.
        """
        if self._world.draining or not self._catalog.settled_once:
            return False
        if not self._is_strict:
            return True
        return all(_is_well(model) for model in self._world.models.values())

    def readiness(self) -> Json:
        """Whether the server is ready, and if not, whether waiting helps.

        `state` is "loading" (or "recovering", after a restart) while models of the start are on
        their way, then "ready", or "failed" when one is not; "draining" at the end. `models` says
        how many are what; while the repository is being read they are not known yet.
        """
        models = self._world.models.values()
        counts = {"ready": 0, "loading": 0, "failed": 0}
        for model in models:
            if _is_well(model):
                counts["ready"] += 1
            elif any(one.state is ModelState.LOADING for one in model.versions.values()):
                counts["loading"] += 1
            else:
                counts["failed"] += 1
        phase = self._phase()
        state = phase
        if phase == "serving":
            state = "failed" if counts["failed"] else "loading" if counts["loading"] else "ready"
        return {
            "ready": self.is_ready(),
            "started": not self._world.draining and self._catalog.settled_once,
            "state": state,
            "models": {"known": len(models), **counts},
            "file_override": self._catalog.allows_files,
        }

    def model_ready(self, name: str, version: int) -> bool:
        model = self._world.models.get(name)
        if model is None:
            return False
        if version == ANY_VERSION:
            return any(one.is_ready for one in model.versions.values())
        found = model.versions.get(version)
        return found is not None and found.is_ready

    def server_metadata(self) -> Json:
        extensions = [one for one in EXTENSIONS if one != CUDA_EXTENSION or self._world.gpus]
        return {"name": self._identity, "version": self._software, "extensions": extensions}

    def model_metadata(self, name: str, version: int) -> Json:
        """KServe's model metadata; shapes with the leading -1 of a batching model."""
        found = self._admission.find(name, version)
        config = found.config

        def tensors(items: tuple[TensorConfig, ...]) -> list[Json]:
            return [
                {"name": one.name, "datatype": one.data_type, "shape": list(config.full_shape(one))}
                for one in items
            ]

        versions = self._world.models[name].versions
        ready = [str(v) for v, one in sorted(versions.items()) if one.state is ModelState.READY]
        return {
            "name": name,
            "versions": ready if version == ANY_VERSION else [str(found.version)],
            "platform": config.platform or config.backend,
            "inputs": tensors(config.inputs),
            "outputs": tensors(config.outputs),
        }

    def model_config(self, name: str, version: int) -> Json:
        return self._admission.find(name, version).config.to_json()

    def class_labels(self, name: str, version: int, known: str) -> Json:
        """What classification needs: whether the first dimension is a batch, and the labels.

        Who knows the labels of this `mark` already is not told them again.
        """
        found = self._admission.find(name, version)
        mark = f"{self._world.incarnation}.{found.generation}"
        if mark == known:
            return {"mark": mark}
        batches = found.config.max_batch_size > 0
        return {"mark": mark, "batches": batches, "labels": found.labels}

    def statistics(self, name: str, version: int) -> Json:
        """Triton's model_stats: READY versions only."""
        models = self._world.models
        if name and name not in models:
            raise RequestError(f"requested model '{name}' is not available")
        chosen = [models[name]] if name else list(models.values())
        stats = [
            one.statistics.to_json(one.name, one.version)
            for model in chosen
            for one in model.versions.values()
            if one.state is ModelState.READY and version in (ANY_VERSION, one.version)
        ]
        if name and not stats:
            if version != ANY_VERSION:
                raise RequestError(f"requested model version is not available for model '{name}'")
            raise RequestError(f"requested model '{name}' is not available")
        return {"model_stats": stats}

    def index(self, ready_only: bool) -> list[Json]:
        """One row per known (model, version); a model that never loaded has only its name."""
        rows: list[Json] = []
        for model in sorted(self._world.models.values(), key=lambda one: one.name):
            if not model.versions:
                if not ready_only:
                    row: Json = {"name": model.name}
                    if model.failure:
                        row |= {"version": "", "state": "UNAVAILABLE", "reason": model.failure}
                    rows.append(row)
                continue
            for number, version in sorted(model.versions.items()):
                if ready_only and version.state is not ModelState.READY:
                    continue
                reason = version.reason or model.failure
                rows.append(
                    {
                        "name": model.name,
                        "version": str(number),
                        "state": str(version.state),
                        "reason": reason,
                    }
                )
        return rows

    def server(self) -> Json:
        """The server itself, in a few words and numbers."""
        world = self._world
        return {
            "name": world.server,
            **world.about,
            "software": self._software,
            "incarnation": world.incarnation,
            "phase": self._phase(),
            "ready": self.is_ready(),
            "models": self.readiness()["models"],
            "sessions": len(world.sessions),
            "slots": len(world.slots),
            "spares": sum(1 for slot in world.slots.values() if slot.is_empty),
        }

    def _phase(self) -> str:
        if self._world.draining:
            return "draining"
        if self._world.recovering:
            return "recovering"
        return "serving" if self._catalog.settled_once else "loading"


def _is_well(model: Model) -> bool:
    if not model.versions:
        return not model.failure
    for one in model.versions.values():
        if not (one.is_ready or one.reason == UNLOADED or one.state is ModelState.UNLOADING):
            return False
    return True

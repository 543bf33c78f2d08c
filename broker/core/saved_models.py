"""What a broker has again of its models after a crash: written to its snapshot, read from it.

Owns the models' part of the state file; whoever changes what is in it raises STATE_FORMAT (see
scheduler). Never asks the repository: what served goes on, whatever lies there by now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from naiad.broker.core.instances import Instance, InstanceState
from naiad.broker.core.models import UNLOADED, Model, ModelState, ModelVersion
from naiad.broker.core.uploads import Uploads
from naiad.broker.core.world import World
from naiad.config.model import ModelConfig

_DESIRED: Final = (ModelState.READY, ModelState.LOADING, ModelState.UNAVAILABLE)
"""What a restarted broker has again. What could not be had is tried again: from LOADING."""


def restore_models(world: World, uploads: Uploads, saved: Sequence[Mapping[str, Any]]) -> None:
    """Models of an earlier broker, as `saved_models` wrote them: instances keep their ids."""
    for entry in saved:
        name = entry["name"]
        model = world.models.setdefault(name, Model(name))
        model.override = entry["override"]
        config = ModelConfig.from_json(json.loads(entry["config"]))
        version = ModelVersion(
            name, entry["version"], entry["directory"], config, entry["generation"]
        )
        version.fingerprint = entry["fingerprint"]
        version.upload = entry["upload"]
        if version.upload:
            uploads.take(version.upload)
        version.labels = entry["labels"]
        version.threads = entry["threads"]
        version.move(ModelState.LOADING)
        if entry["completed"]:
            version.complete(config)
        for ident, instance_name, kind, device, device_id in entry["instances"]:
            instance = Instance(ident, version, instance_name, kind, device, device_id)
            instance.has_served = entry["was_ready"]
            version.add(instance)
            world.instances[ident] = instance
        if entry["completed"] and entry["was_ready"]:
            # It served before: requests queue while its workers say hello or are replaced.
            version.move(ModelState.READY)
        model.versions[version.version] = version


def restore_failures(world: World, saved: Sequence[tuple[str, str]]) -> None:
    """Models that could not be had, so that the index goes on to say why."""
    for name, failure in saved:
        world.models.setdefault(name, Model(name)).failure = failure


def saved_failures(world: World) -> list[tuple[str, str]]:
    models = world.models.values()
    return [(model.name, model.failure) for model in models if model.failure]


def saved_models(world: World) -> list[dict[str, Any]]:
    saved = []
    for model in world.models.values():
        for version in model.versions.values():
            if version.state not in _DESIRED or version.reason == UNLOADED:
                continue
            saved.append(
                {
                    "name": model.name,
                    "override": model.override,
                    "version": version.version,
                    "directory": version.directory,
                    "config": version.config_text(),
                    "completed": version.signature is not None,
                    "was_ready": version.state is ModelState.READY,
                    "generation": version.generation,
                    "fingerprint": version.fingerprint,
                    "upload": version.upload,
                    "labels": version.labels,
                    "threads": version.threads,
                    "instances": [
                        (one.id, one.name, one.kind, one.device, one.device_id)
                        for one in version.instances
                        if one.state is not InstanceState.EXITED
                    ],
                }
            )
    return saved

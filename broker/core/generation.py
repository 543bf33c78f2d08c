"""What the repository helper found, as a generation of a model: its versions and their instances.

Owns the names, devices and number of instances. Nobody knows the new generation yet: whether it
will ever serve is decided elsewhere (see catalog and succession).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from naiad.broker.core.events import Json
from naiad.broker.core.instances import Instance
from naiad.broker.core.models import ModelState, ModelVersion
from naiad.broker.core.world import World
from naiad.config.model import InstanceGroup, ModelConfig

INSTANCES_MAX: Final = 4096


def new_generation(
    world: World, name: str, entry: Json, config: ModelConfig, upload: str
) -> dict[int, ModelVersion]:
    """Versions by number, LOADING; `upload` is the folder of files that came with the load."""
    generation = world.number()
    fresh = {}
    for number in map(int, entry.get("versions", ())):
        version = ModelVersion(name, number, str(entry["directory"]), config, generation)
        version.fingerprint = str(entry.get("fingerprint", ""))
        version.upload = upload
        version.labels = entry.get("labels", {})
        version.move(ModelState.LOADING)
        _make_instances(world, version)
        fresh[number] = version
    return fresh


def _make_instances(world: World, version: ModelVersion) -> None:
    groups = version.config.instance_groups
    total = sum(max(1, group.count) * len(_gpus(world, group)) for group in groups) or 1
    version.threads = version.config.naiad.threads or max(1, world.limits.cores // total)
    index = 0
    for group in groups:
        on_gpu = group.kind == "KIND_GPU"
        for gpu in _gpus(world, group):
            for copy in range(max(1, group.count)):
                if index >= INSTANCES_MAX:
                    return
                device = world.gpus[gpu] if on_gpu else "cpu"
                name = f"{group.name or version.name}_{copy}"
                if on_gpu:
                    name += f"_gpu{gpu}"
                if len(version.config.version_policy.versions) != 1:
                    name += f"_v{version.version}" if version.version != 1 else ""
                instance = Instance(world.number(), version, name, group.kind, device, gpu)
                version.add(instance)
                index += 1


def _gpus(world: World, group: InstanceGroup) -> Sequence[int]:
    """The numbers of the GPUs of a group, each of which gets `count` instances; [0] for the CPU.

    The repository helper has refused those that are not there.
    """
    if group.kind != "KIND_GPU":
        return [0]
    return [gpu for gpu in dict.fromkeys(group.gpus) if gpu < len(world.gpus)]

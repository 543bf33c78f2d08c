"""Models of a simulation: random configurations, and editions of them in a repository.

An edition is what a directory holds at a time: its config and how its worker behaves. Every
operator's edit makes a new edition with a fingerprint and a directory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from support.simulated_time import MICROSECOND, MILLISECOND

Json = dict[str, Any]
GPUS = ("gpu:GPU-a", "gpu:GPU-b")
OK, ERROR, CRASH = "ok", "error", "crash"
"""How a load ends."""


@dataclass(slots=True)
class Edition:
    directory: str
    config: Json
    versions: tuple[int, ...]
    load_ns: int
    outcomes: list[str]
    """Of the first loads, one after the other; later ones go well."""
    service_ns: int
    row_ns: int
    faults: list[Json] = field(default_factory=list)

    def entry(self, name: str) -> Json:
        """What the repository helper says about it."""
        return {
            "name": name,
            "directory": self.directory,
            "versions": list(self.versions),
            "config": None if self.faults else self.config,
            "fingerprint": self.directory,
            "faults": self.faults,
            "warnings": [],
        }


@dataclass(slots=True)
class ModelPlan:
    """A model over all its editions. `widths` are the sizes of a row that clients send."""

    name: str
    rows_max: int
    is_dynamic: bool
    widths: tuple[int, ...]
    priorities: int
    edition: Edition

    def refuses(self, gpus: set[int]) -> bool:
        """Whether no instance can have memory on all these GPUs: it sees its own, or on the CPU
        what the server sees, but then nobody knows beforehand whether it will be one of those."""
        groups = self.edition.config["instance_group"]
        own = {gpu for group in groups for gpu in group.get("gpus", ())}
        has_cpu = any(group["kind"] == "KIND_CPU" for group in groups)
        return bool(own) and (len(gpus) > 1 or not (has_cpu or gpus <= own))

    @property
    def spans_gpus(self) -> bool:
        groups = self.edition.config["instance_group"]
        return len(groups) > 1 or len(groups[0].get("gpus", ())) > 1

    @property
    def batching(self) -> Json:
        found: Json = self.edition.config.get("dynamic_batching") or {}
        return found


def random_model(random: Random, name: str, *, can_time_out: bool, has_limits: bool) -> ModelPlan:
    """Any model of the default scheduler or the dynamic batcher."""
    is_dynamic = random.random() < 0.65
    rows_max = random.choice((2, 4, 8, 16)) if is_dynamic else random.choice((0, 0, 4))
    any_width = random.random() < 0.5
    widths = (8, 16, 24, 20_480) if any_width else (random.choice((8, 8, 64, 32_768)),)
    tensor = {"data_type": "TYPE_UINT8", "dims": [-1 if any_width else widths[0]]}
    parameters = {"naiad.late_batch": random.choice(("true", "true", "false"))}
    config: Json = {
        "name": name,
        "backend": "identity",
        "max_batch_size": rows_max,
        "input": [{"name": "X", **tensor}],
        "output": [{"name": "Y", **tensor}],
        "instance_group": _groups(random, name),
    }
    priorities = 0
    if is_dynamic:
        priorities = random.choice((0, 0, 3))
        config["dynamic_batching"] = _batching(random, rows_max, priorities, can_time_out)
        if has_limits:
            policy = config["dynamic_batching"]["default_queue_policy"]
            policy["max_queue_size"] = random.choice((0, 1, 3, 10))
    else:
        if can_time_out:
            parameters["naiad.queue_timeout_us"] = random.choice(("0", "3000", "20000"))
        if has_limits:
            parameters["naiad.max_queue_size"] = random.choice(("0", "2", "10"))
    config["parameters"] = {key: {"string_value": value} for key, value in parameters.items()}
    edition = Edition(
        directory=f"/models/{name}/0",
        config=config,
        versions=random.choice(((1,), (1,), (1,), (1, 2))),
        load_ns=random.choice((1, 10, 50)) * MILLISECOND,
        outcomes=[],
        service_ns=random.choice((50, 300, 1_000, 5_000, 30_000)) * MICROSECOND,
        row_ns=random.choice((0, 0, 100)) * MICROSECOND,
    )
    if len(edition.versions) > 1:
        config["version_policy"] = {"all": {}}
    return ModelPlan(name, rows_max, is_dynamic, widths, priorities, edition)


def _groups(random: Random, name: str) -> list[Json]:
    """On the CPU, on one GPU or two, or on both kinds."""
    cpu = {"name": name, "kind": "KIND_CPU", "count": random.choice((1, 1, 2, 3))}
    if random.random() < 0.6:
        return [cpu]
    gpus = random.choice(([0], [0, 1], [0, 1]))
    found = [{"name": f"{name}_g", "kind": "KIND_GPU", "gpus": gpus, "count": 1}]
    return [*found, cpu] if random.random() < 0.3 else found


def _batching(random: Random, rows_max: int, priorities: int, can_time_out: bool) -> Json:
    policy: Json = {"timeout_action": random.choice(("REJECT", "REJECT", "DELAY"))}
    if can_time_out:
        policy["default_timeout_microseconds"] = random.choice((0, 500, 3_000, 20_000))
        policy["allow_timeout_override"] = random.random() < 0.5
    preferred = random.choice(([], [rows_max], [max(1, rows_max // 2)], [2, rows_max]))
    batching: Json = {
        "preferred_batch_size": sorted(set(preferred)),
        "max_queue_delay_microseconds": random.choice((0, 0, 100, 1_000, 5_000)),
        "default_queue_policy": policy,
    }
    if priorities:
        batching["priority_levels"] = priorities
        batching["default_priority_level"] = 2
        if random.random() < 0.5:
            batching["priority_queue_policy"] = {"3": {"max_queue_size": 0}}
    return batching


def edited(random: Random, plan: ModelPlan, number: int, trouble: float) -> Edition:
    """A new edition of a model; with probability `trouble` it does not load, or not at first."""
    old = plan.edition
    outcomes: list[str] = []
    faults: list[Json] = []
    if random.random() < trouble:
        kind = random.randrange(4)
        if kind == 0:
            faults = [{"where": "config.pbtxt:3:1", "message": "expected a name", "remedy": ""}]
        elif kind == 1:
            outcomes = [ERROR] * 10
        else:
            outcomes = random.choice(([ERROR], [CRASH], [OK, ERROR], [CRASH] * 3, [CRASH] * 30))
    groups = [{**group, "count": random.choice((1, 2))} for group in old.config["instance_group"]]
    return Edition(
        directory=f"/models/{plan.name}/{number}",
        config={**old.config, "instance_group": groups},
        versions=old.versions if random.random() < 0.8 else random.choice(((1,), (2,), (1, 2))),
        load_ns=random.choice((1, 20, 200)) * MILLISECOND,
        outcomes=outcomes,
        service_ns=old.service_ns,
        row_ns=old.row_ns,
        faults=faults,
    )

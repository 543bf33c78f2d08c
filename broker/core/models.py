"""Models and their versions: states, what each accepts, what waits for each.

A model name has one serving generation and, during a reload, one incoming generation. States are
Triton's; health, index and metrics derive from these records and from nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from naiad.broker.core.batcher import BatchPolicy
from naiad.broker.core.instances import Instance, Slot
from naiad.broker.core.queue import ModelQueue
from naiad.broker.core.signature import Signature
from naiad.broker.core.statistics import ModelStatistics
from naiad.config.model import ModelConfig, QueuePolicy


class ModelState(StrEnum):
    """Triton's. UNKNOWN: nothing was tried; LOADING until an instance serves; READY; UNLOADING: it
    finishes what it has; UNAVAILABLE, with the reason: not wanted, or it cannot be had."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


_S = ModelState
MOVES: Final[dict[ModelState, frozenset[ModelState]]] = {
    _S.UNKNOWN: frozenset({_S.LOADING, _S.UNAVAILABLE}),
    _S.LOADING: frozenset({_S.READY, _S.UNAVAILABLE, _S.UNLOADING}),
    _S.READY: frozenset({_S.UNLOADING, _S.UNAVAILABLE}),
    _S.UNLOADING: frozenset({_S.UNAVAILABLE}),
    _S.UNAVAILABLE: frozenset({_S.LOADING, _S.UNLOADING}),
}

UNLOADED: Final = "unloaded"

Call = tuple[int, int]
"""A session, and its number for a control call that is answered later."""


class LevelPolicy(NamedTuple):
    """What admission needs for one priority. `size_max` 0 and `timeout_ns` 0 mean no limit."""

    rank: int
    size_max: int
    timeout_ns: int
    override: bool
    delays: bool


class ModelVersion:
    """One version of one generation of a model, with its queue and its instances."""

    def __init__(
        self, name: str, version: int, directory: str, config: ModelConfig, generation: int
    ):
        self.name = name
        self.version = version
        self.directory = directory
        self.config = config
        self.generation = generation
        self.state = ModelState.UNKNOWN
        self.reason = ""
        self.instances: list[Instance] = []
        self.idle: list[Slot] = []
        self.spans_gpus = False
        """Its instances do not all see the same GPU."""
        self.queue = ModelQueue()
        self.signature: Signature | None = None
        self.batch_policy = BatchPolicy()
        self.takes_turns = True
        """False where answers must come in the order of their requests, whoever sent them."""
        self.levels: dict[int, LevelPolicy] = {}
        self.statistics = ModelStatistics()
        self.executing = 0
        self.consecutive_deaths = 0
        self.attempts = 0
        self.next_retry_ns = 0
        self.wake_ns = 0
        self.load_ns = 0
        self.gpu_bytes = 0
        """What one instance takes of a GPU's memory, the most that was measured; 0: not known."""
        self.threads = 0
        self.fingerprint = ""
        self.upload = ""
        """The folder of files that came with its load, if any did."""
        self.labels: Mapping[str, Sequence[str]] = {}
        """Names of the classes of its outputs, by the output; from its label files."""
        self._config_text = ""

    def __repr__(self) -> str:
        return f"<{self.name}/{self.version} {self.state} queued={len(self.queue)}>"

    def add(self, instance: Instance) -> None:
        self.instances.append(instance)
        if instance.gpu != self.instances[0].gpu:
            self.spans_gpus = True

    def config_text(self) -> str:
        """The config as JSON, made once: the state file is written at every change of anything."""
        if not self._config_text:
            self._config_text = json.dumps(self.config.to_json(), separators=(",", ":"))
        return self._config_text

    def move(self, state: ModelState, reason: str = "") -> None:
        assert state in MOVES[self.state], f"{self.name}/{self.version}: {self.state} -> {state}"
        self.state = state
        self.reason = reason

    @property
    def is_ready(self) -> bool:
        """Ready while at least one instance can take work now or after what it runs."""
        if self.state is ModelState.READY:
            for one in self.instances:  # asked of every model at once: no generator
                if one.serves:
                    return True
        return False

    def complete(self, config: ModelConfig) -> None:
        """Take the config a worker completed; compile from it what requests are checked with."""
        self.config = config
        self._config_text = ""
        self.signature = Signature(config)
        batching = config.dynamic_batching
        self.takes_turns = batching is None or not batching.preserve_ordering
        rows_max = max(1, config.max_batch_size)
        if batching is None or config.max_batch_size == 0:
            self.batch_policy = BatchPolicy(rows_max=rows_max)
        else:
            self.batch_policy = BatchPolicy(
                batching=True,
                rows_max=rows_max,
                preferred=tuple(sorted(batching.preferred_batch_size)) or (rows_max,),
                delay_ns=batching.max_queue_delay_microseconds * 1000,
            )
        self.levels.clear()

    def level_policy(self, priority: int) -> LevelPolicy:
        """The policy for a request's priority; 0, absent or too large means the default level."""
        found = self.levels.get(priority)
        if found is None:
            found = self._level_policy(priority)
            if len(self.levels) < 1024:
                self.levels[priority] = found
        return found

    def _level_policy(self, priority: int) -> LevelPolicy:
        batching = self.config.dynamic_batching
        own = self.config.naiad
        policy = QueuePolicy()
        level = 0
        if batching is not None:
            if batching.priority_levels:
                in_range = 0 < priority <= batching.priority_levels
                level = priority if in_range else batching.default_priority_level
            policy = batching.policy_of(level)
        timeout_us = policy.default_timeout_microseconds
        return LevelPolicy(
            rank=2 * level,
            size_max=policy.max_queue_size or own.max_queue_size,
            timeout_ns=(timeout_us or own.queue_timeout_us) * 1000,
            override=policy.allow_timeout_override or timeout_us == 0,
            delays=timeout_us > 0 and policy.timeout_action == "DELAY",
        )


class Model:
    """A name in the repository: what it serves and what is coming.

    `failure` tells why the newest load failed while an older generation may still serve.
    `calls` are to be answered once the load or unload has settled.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[int, ModelVersion] = {}
        self.incoming: dict[int, ModelVersion] = {}
        self.incoming_since_ns = 0
        self.override: str | None = None
        """The config of a load request with which `versions` were loaded instead of the file's."""
        self.incoming_override: str | None = None
        self.failure = ""
        self.calls: list[Call] = []

    def newest(self) -> ModelVersion | None:
        """The highest READY version, as a request without a version asks for."""
        ready = [v for v, one in self.versions.items() if one.state is ModelState.READY]
        return self.versions[max(ready)] if ready else None

    def all_versions(self) -> list[ModelVersion]:
        return [*self.versions.values(), *self.incoming.values()]

"""Slots (worker processes) and instances (what the operator wants them to be).

A slot comes empty, is told to load one instance, and dies with it. An instance outlives its slots:
after a death it waits for the next slot. Both states are tables; an illegal move is our bug.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from naiad.broker.core.job import ANYWHERE
from naiad.broker.core.prediction import Prediction

if TYPE_CHECKING:
    from naiad.broker.core.job import Batch
    from naiad.broker.core.models import ModelVersion
    from naiad.protocol.messages import Region, SlotHello


class InstanceState(StrEnum):
    """What an instance does or waits for, in the words of `naiad status`.

    WAITING for a slot, LOADING in one, READY for a batch, BUSY with one, DRAINING: it ends when its
    work is done. BACKOFF: a pause before it waits for a slot again. FATAL: given up, for the crash
    budget is used up, the load failed, or too many of its workers do not die. LOST: its process
    cannot be killed. EXITED: wanted no more.
    """

    WAITING = "WAITING"
    LOADING = "LOADING"
    READY = "READY"
    BUSY = "BUSY"
    DRAINING = "DRAINING"
    BACKOFF = "BACKOFF"
    FATAL = "FATAL"
    LOST = "LOST"
    EXITED = "EXITED"


_S = InstanceState
_LEAVING: Final = frozenset({_S.WAITING, _S.BACKOFF, _S.FATAL, _S.DRAINING, _S.EXITED, _S.LOST})
MOVES: Final[dict[InstanceState, frozenset[InstanceState]]] = {
    _S.WAITING: frozenset({_S.LOADING, _S.READY, _S.BUSY, _S.BACKOFF, _S.FATAL, _S.EXITED}),
    _S.LOADING: _LEAVING | {_S.READY},
    _S.READY: _LEAVING | {_S.BUSY},
    _S.BUSY: _LEAVING | {_S.READY},
    _S.DRAINING: frozenset({_S.EXITED}),
    _S.BACKOFF: frozenset({_S.WAITING, _S.FATAL, _S.EXITED}),
    _S.FATAL: frozenset({_S.WAITING, _S.DRAINING, _S.EXITED}),
    _S.LOST: frozenset({_S.WAITING, _S.BACKOFF, _S.FATAL, _S.EXITED}),
    _S.EXITED: frozenset(),
}
HOPELESS: Final = (_S.FATAL, _S.EXITED)
"""Not without a new decision will such an instance run anything."""


class Instance:
    """One wanted copy of a model version on one device."""

    def __init__(
        self, ident: int, model: ModelVersion, name: str, kind: str, device: str, device_id: int
    ) -> None:
        self.id = ident
        self.model = model
        self.name = name
        self.kind = kind
        self.device = device
        self.device_id = device_id
        self.gpu = device_id if kind == "KIND_GPU" else ANYWHERE
        """The one whose memory it sees."""
        self.state = InstanceState.WAITING
        self.slot: Slot | None = None
        self.restarts = 0
        self.busy_ns = 0
        """Time that its workers spent on batches."""
        self.deaths = 0
        """Since its last finished batch: each makes the next pause longer."""
        self.has_served = False
        self.tries_without_room = 0
        """In a row: its GPU had not enough memory for it."""
        self.no_room = ""
        """What was said then, until it is tried again."""

    def move(self, state: InstanceState) -> None:
        assert state in MOVES[self.state], f"instance {self.name}: {self.state} -> {state}"
        self.state = state

    def sees(self, gpu: int) -> bool:
        """Whether it can execute requests with memory there."""
        return gpu == ANYWHERE or self.gpu in (gpu, ANYWHERE)

    @property
    def serves(self) -> bool:
        """Whether it can take work now or after what it runs; not when it is being fenced."""
        is_up = self.state in (InstanceState.READY, InstanceState.BUSY)
        return is_up and not (self.slot is not None and self.slot.silent)


class Slot:
    """One worker process. `current` is what it executes, `ahead` what was sent ahead, in order.

    `silent`: heartbeats stopped, the process is being fenced; nothing more is sent to it.
    """

    def __init__(self, key: int, hello: SlotHello, pid: int) -> None:
        self.key = key
        self.name = hello.slot
        self.device = hello.device
        self.backends = hello.backends
        self.pid = pid
        self.hello = hello
        self.instance: Instance | None = None
        self.current: Batch | None = None
        self.ahead: deque[Batch] = deque()
        self.early_due_ns = 0
        self.acknowledged = 0
        self.held: dict[int, Batch] = {}
        """Batches of an earlier broker whose results this worker still sends."""
        self.regions: set[int] = set()
        self.arenas: dict[int, Region] = {region.id: region for region in hello.arenas}
        self.prediction = Prediction()
        self.silent = False
        self.is_lost = False
        """Killed a long time ago, and not dead: what it has may still be written to."""
        self.lost_of: Instance | None = None
        """Whose worker it was until it was given up as lost; a spare was nobody's."""
        self.stopping = False
        self.is_watched = False
        """A timer will look how long its execution takes."""
        self.loading_since_ns = 0

    @property
    def is_empty(self) -> bool:
        return self.instance is None and not self.silent and not self.stopping

    @property
    def is_occupied(self) -> bool:
        """Whether it cannot react before an execution or a load has ended."""
        loading = self.instance is not None and self.instance.state is InstanceState.LOADING
        return loading or self.current is not None

    def batches(self) -> Iterator[Batch]:
        if self.current is not None:
            yield self.current
        yield from self.ahead

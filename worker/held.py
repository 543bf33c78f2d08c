"""Batches a worker has: waiting, being executed, finished but not yet acknowledged. Pure.

This is what survives a broker: SLOT_HELLO lists it, and finished results are sent again. Finished
ones are bounded, newest kept: far more than the broker has out, so none of value is lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from naiad.protocol.messages import BatchRequest, HeldBatch
from naiad.worker.batch import Buffer, ReceivedBatch

FINISHED_BATCHES_MAX: Final = 32
"""The broker has one batch executed and a series of 16 ahead, at most."""
WAITING_BATCHES_MAX: Final = 64
"""Far beyond what a broker may send; a broker that does not know its own limit is refused."""

Key = tuple[int, int]


class FinishedBatch(NamedTuple):
    """The RESULTS message of a batch as it was, or will be, sent."""

    id: int
    requests: tuple[BatchRequest, ...]
    header: bytes
    frames: list[Buffer]


class HeldBatches:
    """In the order the broker sent them: waiting, executing, finished until it has acknowledged."""

    def __init__(self) -> None:
        self.waiting: deque[ReceivedBatch] = deque()
        self.executing: ReceivedBatch | None = None
        self.begun_ahead: ReceivedBatch | None = None
        """Waits for its turn, but its device has begun it: it is nobody else's any more."""
        self.finished: OrderedDict[int, FinishedBatch] = OrderedDict()
        self.abandoned: set[Key] = set()

    def take(self) -> ReceivedBatch | None:
        """The next batch, now executing; None when none waits."""
        self.executing = self.waiting.popleft() if self.waiting else None
        self.begun_ahead = None
        return self.executing

    def begin_ahead(self, batch: ReceivedBatch) -> bool:
        """Its device is about to begin a batch that waits; False when it was given back."""
        if any(waiting is batch for waiting in self.waiting):
            self.begun_ahead = batch
            return True
        return False

    def finish(self, batch: FinishedBatch) -> None:
        """The executing batch has its results."""
        assert self.executing is not None
        assert self.executing.id == batch.id
        self.executing = None
        self.finished[batch.id] = batch
        if len(self.finished) > FINISHED_BATCHES_MAX:
            self.finished.popitem(last=False)
        self._forget_abandoned(batch.requests)

    def not_begun(self) -> list[ReceivedBatch]:
        """What waits and could be executed elsewhere."""
        return [batch for batch in self.waiting if batch is not self.begun_ahead]

    def give_back(self) -> None:
        """What has not begun is another worker's to execute."""
        for batch in self.not_begun():
            self._forget_abandoned(batch.requests)
            self.waiting.remove(batch)

    def _forget_abandoned(self, requests: tuple[BatchRequest, ...]) -> None:
        if self.abandoned:
            self.abandoned.difference_update((r.session, r.id) for r in requests)

    def acknowledge(self, newest: int) -> None:
        """The broker has the results of this batch and of all that were sent before it."""
        finished = self.finished
        while finished and next(iter(finished)) <= newest:
            finished.popitem(last=False)

    def abandon(self, requests: tuple[Key, ...]) -> None:
        """Nobody waits for these; those that are not here are not remembered."""
        batches = [*self.waiting] if self.executing is None else [self.executing, *self.waiting]
        here = {(r.session, r.id) for batch in batches for r in batch.requests}
        self.abandoned.update(here.intersection(requests))

    def describe(self) -> tuple[HeldBatch, ...]:
        """For SLOT_HELLO: finished ones first, then what is executed, then what waits."""
        unfinished = [*self.waiting] if self.executing is None else [self.executing, *self.waiting]
        return tuple(
            HeldBatch(batch.id, tuple((r.session, r.id) for r in batch.requests), finished)
            for finished, batches in ((True, self.finished.values()), (False, unfinished))
            for batch in batches
        )

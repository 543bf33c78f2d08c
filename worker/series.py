"""Short executions come in series, and long ones hold up nobody: what is done beside the model.

Owns results that leave together, and messages that came while a model ran and wait for its end.
The main thread calls all of it; the watch (series_watch) calls `_relieve` while the model's code
runs. Both hold the transport's lock. Of models that batch, results leave at once and the one batch
ahead stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from naiad.protocol import messages as m
from naiad.protocol.bundle import bundled
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import ProtocolError
from naiad.worker.batch import Buffer, ReceivedBatch
from naiad.worker.held import HeldBatches
from naiad.worker.presence import BrokerPresence
from naiad.worker.series_watch import HELD_S, SeriesWatch
from naiad.worker.transport import Frames, Transport

POSTPONED_MAX: Final = 64
"""Messages that the watch keeps for the main thread; the others stay where they are."""


class Series:
    """`begin` before each execution, `post` after it.

    Args:
        send: a message, or an end of the connection.
        handle: a message, on behalf of the model's thread: it raises nothing.
    """

    def __init__(
        self,
        transport: Transport,
        held: HeldBatches,
        presence: BrokerPresence,
        *,
        send: Callable[[bytes, list[Buffer]], None],
        handle: Callable[[Frames], None],
    ) -> None:
        self.is_on = False
        """Whether batches are single requests, of which several may come together."""
        self._transport = transport
        self._held = held
        self._presence = presence
        self._send = send
        self._handle = handle
        self._executing_since = self._outgoing_since = 0.0
        self._outgoing: list[tuple[bytes, list[Buffer]]] = []
        self._postponed: deque[Frames] = deque()
        """In their order."""
        self._is_barred = False
        """The last of these changes what those behind it mean: nothing may overtake it."""
        self._watch = SeriesWatch(transport.lock, self._relieve)

    def close(self) -> None:
        self._watch.close()
        self.send_results()

    @property
    def has_results(self) -> bool:
        """Whether some have not left yet."""
        return bool(self._outgoing)

    def begin(self) -> None:
        """An execution begins."""
        self._executing_since = monotonic()
        if self.is_on:
            self._watch.begin()

    def post(self, header: bytes, frames: list[Buffer]) -> None:
        """Results of short executions go together while more of these are here; others at once."""
        now = monotonic()
        if not self._outgoing:
            self._outgoing_since = self._executing_since
        self._outgoing.append((header, frames))
        is_held = self._held.waiting and self.is_on
        if not is_held or now - self._outgoing_since >= HELD_S:
            self.send_results()

    def send_results(self) -> None:
        messages, self._outgoing = self._outgoing, []
        if messages:
            self._send(*bundled(messages))

    def drop_results(self) -> None:
        """All that is finished is sent anew."""
        self._outgoing.clear()

    def take_postponed(self) -> Frames | None:
        """The first message that waited for the end of an execution."""
        if not self._postponed:
            return None
        frames = self._postponed.popleft()
        self._is_barred = self._is_barred and bool(self._postponed)
        return frames

    def may_begin(self, batch: ReceivedBatch) -> bool:
        """Asked by a device's backend while the lock is free: the watch may have given it back."""
        with self._transport.lock:
            return self._held.begin_ahead(batch)

    # --- The watch's thread ------------------------------------------------------------------

    def _relieve(self) -> float:
        """Asked while the model's code runs; for how long it has run, in seconds.

        What cannot be sent now is kept: the main thread finds out why.
        """
        now = monotonic()
        elapsed_s = now - self._executing_since
        if not self._presence.is_welcomed or self._transport.is_broken:
            return elapsed_s
        if self._outgoing and now - self._outgoing_since >= HELD_S:
            if not self._transport.send(*bundled(self._outgoing)):
                return elapsed_s
            self._outgoing.clear()
        if elapsed_s >= HELD_S:
            self._receive()
            self._give_back()
        return elapsed_s

    def _receive(self) -> None:
        """What the broker sent before it could know how long this execution takes.

        Batches and cancellations alone: all else touches what the model's thread uses without the
        lock, and waits for it.
        """
        while not self._is_barred and len(self._postponed) < POSTPONED_MAX:
            frames = self._transport.receive()
            if frames is None:
                return
            header, payload = frames
            try:
                message = decode(header, [len(frame) for frame in payload])
            except ProtocolError:
                self._is_barred = True
                self._postponed.append(frames)
            else:
                if isinstance(message, m.Batch | m.Bundle | m.Abandon):
                    self._handle(frames)
                else:
                    self._is_barred = not isinstance(message, m.Return | m.Forget | m.LogLevels)
                    self._postponed.append(frames)

    def _give_back(self) -> None:
        """What waits behind a long execution may find a free worker, and can still expire."""
        held = self._held
        batches = held.not_begun()
        if held.executing is None or not batches:
            return
        if self._transport.send(encode(m.GivenBack(tuple([batch.id for batch in batches])))):
            held.give_back()

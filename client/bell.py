"""What the thread that drives a socket sleeps on: its descriptors, and a bell to wake it.

Owns the bell (an eventfd) and the poll object. Anybody may ring, with a lock or without; all else
is for who drives. Neither reads nor closes the socket.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence
from typing import Final

from naiad.client.connection import Connection

_EVENT: Final = (1).to_bytes(8, "little")


class Bell:
    """Made silent, and watching nothing else."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self.sleep: Final = self._poll.poll
        """Until the bell rings, something comes, or so many milliseconds are over."""
        self.watched: tuple[int, ...] = ()
        """Descriptors of the connection."""

    def ring(self) -> None:
        os.write(self._descriptor, _EVENT)

    def hear(self, ready: Sequence[tuple[int, int]], wanted: int) -> bool:
        """Take in what ended the sleep; whether this descriptor was among it."""
        is_among = False
        for descriptor, _ in ready:
            if descriptor == self._descriptor:
                # Somebody may have led, and read it, between the poll and the lock.
                with contextlib.suppress(BlockingIOError):
                    os.read(self._descriptor, 8)
            elif descriptor == wanted:
                is_among = True
        return is_among

    def watch(self, connection: Connection) -> None:
        self.watched = (connection.descriptor, connection.monitor_descriptor)
        for descriptor in self.watched:
            self._poll.register(descriptor, select.POLLIN)

    def unwatch(self) -> None:
        """Before the descriptors are closed: their numbers will be those of other files."""
        for descriptor in self.watched:
            # Interrupted, they were watched or unwatched by halves.
            with contextlib.suppress(KeyError):
                self._poll.unregister(descriptor)
        self.watched = ()

    def close(self) -> None:
        os.close(self._descriptor)

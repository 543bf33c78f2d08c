"""The supervisor as the broker's shell knows it: its connection, and how workers ended.

There is one at a time; it may say hello again on a new connection. Without any (under supervisord)
nobody tells how a worker ended, and nobody waits for it.
"""

from __future__ import annotations

from typing import Final

from naiad.protocol.errors import ProtocolError

STATUSES_MAX: Final = 256
"""Exits the supervisor told of and nobody has asked for yet; the oldest are forgotten."""


class SupervisorPeer:
    """`peer` is its connection, None when there is none."""

    def __init__(self) -> None:
        self.peer: bytes | None = None
        self._secret = b""
        self._statuses: dict[int, int] = {}

    def opened(self, peer: bytes, secret: bytes) -> None:
        """It said hello. Raises ProtocolError when another one is there."""
        if self.peer is not None and secret != self._secret:
            raise ProtocolError("another supervisor is connected; only one can start workers")
        self.peer = peer
        self._secret = secret

    def exited(self, pid: int, status: int) -> None:
        self._statuses[pid] = status
        if len(self._statuses) > STATUSES_MAX:
            del self._statuses[next(iter(self._statuses))]

    def may_tell_of(self, pid: int) -> bool:
        """Whether its word on how this process ended is still to be expected."""
        return self.peer is not None and pid not in self._statuses

    def take_status(self, pid: int) -> int | None:
        """Its word, asked for once: the exit code, negative for a signal."""
        return self._statuses.pop(pid, None)

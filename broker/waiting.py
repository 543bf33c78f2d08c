"""What the loop sleeps on: all its descriptors, and the sockets behind some of them, in one poll.

A ZeroMQ socket's descriptor (ZMQ_FD) is no promise of a message, and its silence none of there
being none. It turns readable when something has come *since the last look at the socket that found
nothing*; and any send or receive may take that signal away, message or not. Hence the rule:

- whoever sends on a socket, or receives from it, has it looked at (`hides_message`) before the next
  sleep, whatever its descriptor says; `wait` does that, and does not sleep when something is there;
- a socket whose descriptor was readable is read until there is nothing, or looked at again.

A monitor's socket is only ever read until a look finds nothing (`Transport.disconnected`), so its
descriptor alone tells.

It is a poll() and not an epoll, which would save 0.4 µs: epoll forgets a descriptor that is closed,
and its number may be another file's by the time it is watched again.
"""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Final, Protocol

READABLE: Final = select.POLLIN
WRITABLE: Final = select.POLLOUT


class Socket(Protocol):
    """A ZeroMQ socket, as far as waiting for it is concerned."""

    @property
    def descriptor(self) -> int: ...

    def hides_message(self) -> bool:
        """Whether there is a message that the descriptor may be silent about: a look at the socket
        itself, which is needless when the last one found nothing and it was not used since."""


class Waiting:
    """`wait` for sockets and descriptors; each is named by its descriptor."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._sockets: tuple[Socket, ...] = ()

    def watch_sockets(self, sockets: Iterable[Socket]) -> None:
        """These, from now on until the end."""
        self._sockets = (*self._sockets, *sockets)
        for socket in self._sockets:
            self._poll.register(socket.descriptor, READABLE)

    def watch(self, descriptor: int, events: int = READABLE) -> None:
        self._poll.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Closed already or not: only its number is known here."""
        self._poll.unregister(descriptor)

    def wait(self, timeout_ms: int) -> list[int]:
        """What is ready, for which it sleeps up to `timeout_ms`. A socket that always has messages
        hides nobody: all others are asked each time."""
        ready = [socket.descriptor for socket in self._sockets if socket.hides_message()]
        for descriptor, _ in self._poll.poll(0 if ready else timeout_ms):
            if descriptor not in ready:
                ready.append(descriptor)
        return ready

"""Who lives: pidfds of clients and workers behind one epoll descriptor, and the fence.

Only a readable pidfd is death. A worker under suspicion gets a stack dump, then SIGKILL, and its
work is given to nobody before its pidfd is readable: until then it might still write.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import Final, NamedTuple

EVENTS_PER_DRAIN_MAX: Final = 256


class Watched(NamedTuple):
    """`key` is a session's or slot's number; `is_slot` tells which."""

    key: int
    is_slot: bool
    pid: int


class Liveness:
    """Owns the pidfds it was given, until they are dead or `unwatch`ed."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._by_pidfd: dict[int, Watched] = {}
        self._pidfds: dict[tuple[int, bool], int] = {}

    @property
    def descriptor(self) -> int:
        """Readable when somebody died."""
        return self._epoll.fileno()

    def close(self) -> None:
        for pidfd in self._by_pidfd:
            os.close(pidfd)
        self._by_pidfd.clear()
        self._pidfds.clear()
        self._epoll.close()

    def watch(self, key: int, *, is_slot: bool, pid: int, pidfd: int) -> None:
        """Take over a pidfd. A second one for the same key replaces the first."""
        self.unwatch(key, is_slot=is_slot)
        self._by_pidfd[pidfd] = Watched(key, is_slot, pid)
        self._pidfds[(key, is_slot)] = pidfd
        self._epoll.register(pidfd, select.EPOLLIN)

    def unwatch(self, key: int, *, is_slot: bool) -> None:
        pidfd = self._pidfds.pop((key, is_slot), None)
        if pidfd is not None:
            self._epoll.unregister(pidfd)
            del self._by_pidfd[pidfd]
            os.close(pidfd)

    def dead(self) -> list[Watched]:
        """Those whose process is dead for certain; they are no longer watched."""
        found = []
        for pidfd, _ in self._epoll.poll(0, EVENTS_PER_DRAIN_MAX):
            watched = self._by_pidfd[pidfd]
            self.unwatch(watched.key, is_slot=watched.is_slot)
            found.append(watched)
        return found

    def is_watched(self, key: int, *, is_slot: bool) -> bool:
        return (key, is_slot) in self._pidfds

    def signal(self, key: int, number: signal.Signals) -> None:
        """Signal a worker through its pidfd, so that a reused pid is never hit."""
        pidfd = self._pidfds.get((key, True))
        if pidfd is not None:
            # It may have died a moment ago: its pidfd says so next.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)


def start_time(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 if there is none.

    Together with the pid it names a process also across a restart of the broker.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def open_same(pid: int, started: int) -> int | None:
    """A pidfd for the process that had this pid and start time, or None if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if started and start_time(pid) == started:
        return pidfd
    os.close(pidfd)
    return None

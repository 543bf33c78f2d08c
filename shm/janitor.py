"""Removes the segments of processes that died without removing them. No NumPy.

A segment's owner holds a lock on it (flock LOCK_SH) that ends with the process, however it ends.
Only what can be locked exclusively is removed, and only names of ours, of this user, and older than
MIN_AGE_SECONDS (a segment is created a moment before it is locked). Never waits for a lock.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final, NamedTuple

import posix_ipc

from naiad.shm.layout import PREFIX, parse_segment_name, sanitised_server
from naiad.shm.objects import DIRECTORY

MIN_AGE_SECONDS: Final = 10.0
ENTRIES_PER_SWEEP_MAX: Final = 512
"""Directory entries looked at in one call; the next call goes on where this one ended."""


class Swept(NamedTuple):
    """What one call did. `is_complete`: the end of the directory was reached."""

    removed: tuple[str, ...]
    removed_bytes: int
    is_complete: bool


class Janitor:
    """Looks through /dev/shm, a bounded piece per call.

    Args:
        server: only segments of this server; None means of every naiad server of this user. Do not
            sweep other servers' names while they run: a dead worker's results may still be read by
            a client of that server, and only its broker knows (see `keep`).
        now_s: the wall clock, in seconds since 1970, as file times are.
        min_age_s: segments changed more recently than this are left alone.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        now_s: Callable[[], float] = time.time,
        min_age_s: float = MIN_AGE_SECONDS,
    ) -> None:
        self._prefix = PREFIX if server is None else f"{PREFIX}{sanitised_server(server)}."
        self._now_s = now_s
        self._min_age_s = min_age_s
        self._entries: Iterator[str] | None = None

    def sweep(self, keep: Collection[str] = (), entries_max: int = ENTRIES_PER_SWEEP_MAX) -> Swept:
        """Remove what is stale among the next `entries_max` entries.

        `keep`: keys to leave although their owner may be dead, because results in them are leased.
        Keys known to be alive belong there too: looking at a living segment takes 20 µs.
        Raises nothing: what cannot be opened, locked or removed is somebody else's.
        """
        if self._entries is None:
            try:
                self._entries = iter(os.listdir(DIRECTORY))
            except OSError:
                return Swept((), 0, True)
        removed, removed_bytes, seen = [], 0, 0
        for name in islice(self._entries, entries_max):
            seen += 1
            key = f"/{name}"
            if not key.startswith(self._prefix) or key in keep or parse_segment_name(key) is None:
                continue
            size = self._removed_bytes(key)
            if size is not None:
                removed.append(key)
                removed_bytes += size
        is_complete = seen < entries_max
        if is_complete:
            self._entries = None
        return Swept(tuple(removed), removed_bytes, is_complete)

    def _removed_bytes(self, key: str) -> int | None:
        """Bytes of the stale segment that was removed, or None if it is not stale."""
        try:
            found = os.lstat(DIRECTORY + key)
        except OSError:
            return None
        if self._now_s() - found.st_ctime < self._min_age_s:
            return None
        return _removed(key, found)


def _removed(key: str, expected: os.stat_result) -> int | None:
    """Bytes of the segment, unlinked under its exclusive lock; None if it may not be removed."""
    if not stat.S_ISREG(expected.st_mode) or expected.st_uid != os.geteuid():
        return None
    path = DIRECTORY + key
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another janitor may have removed the name, and somebody may have made it anew, before
        # the lock was ours; from here on neither can happen to what is locked.
        locked, named = os.fstat(descriptor), os.lstat(path)
        if not os.path.samestat(locked, named) or not os.path.samestat(locked, expected):
            return None
        posix_ipc.unlink_shared_memory(key)
        return locked.st_size
    except (OSError, posix_ipc.Error):
        return None
    finally:
        os.close(descriptor)

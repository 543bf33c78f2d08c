"""An arena with its memory: segments made when needed, trimmed when idle, lent as memoryviews.

A client takes its tensors from a Pool; `shm.output_arena` adds a worker's leases to one. When
/dev/shm or the limit has no room, `allocate` says None and the caller sends the tensor inline: a
full machine makes naiad slower, not wrong. Owns its segments and unlinks them in `close`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol, Self

from naiad.protocol.errors import InternalError
from naiad.protocol.messages import Region
from naiad.shm.arena import SEGMENT_BYTES_MIN, Arena, Range, index_size, size_index
from naiad.shm.layout import PAGE_BYTES, RANDOM_BYTES, aligned_up, checked_range, segment_name
from naiad.shm.objects import free_bytes
from naiad.shm.segment import Segment, SharedMemoryFull

ARENA_BYTES_MAX: Final = 4 << 30
"""Limit of one process's arena, unless it is given another."""
RETRY_NS: Final = 1_000_000_000
"""After /dev/shm was found full, growing is not tried again for this long."""
TRIM_SECONDS: Final = 30
"""Memory that was not needed for this long is given back."""
LOW_BYTES: Final = SEGMENT_BYTES_MIN
"""`trim` keeps at least this much."""

_log: Final = logging.getLogger(__name__)


class PoolCounters(NamedTuple):
    """`total` and `used` are now; the others count since the start."""

    total_bytes: int
    used_bytes: int
    allocations: int
    refusals: int
    """Allocations that found no room: these tensors travelled inline."""
    segments_created: int
    segments_removed: int


class Loan:
    """Bytes that the holder may use until `release`, and where they are, for a descriptor."""

    __slots__ = ("_returned", "range", "view")

    def __init__(self, lent: Range, view: memoryview, returned: deque[Range]) -> None:
        self.range = lent
        self.view = view
        """Writable, exactly `size` bytes; empty after release."""
        self._returned: deque[Range] | None = returned

    @property
    def region(self) -> int:
        """Id of the region that the bytes lie in."""
        return self.range.segment

    @property
    def offset(self) -> int:
        return self.range.offset

    @property
    def size(self) -> int:
        return self.range.size

    def release(self) -> None:
        """Give the bytes back. Safe in every thread and in finalizers: it only appends.

        Raises InternalError the second time.
        """
        returned, self._returned = self._returned, None
        if returned is None:
            raise InternalError(f"{self.range} was released twice")
        self.view = _EMPTY
        returned.append(self.range)


_EMPTY: Final = memoryview(b"")


class Memory(Protocol):
    """What a pool needs of a segment."""

    region: Region
    view: memoryview

    def close(self) -> bool: ...

    def abandon(self) -> bool: ...


class CreateMemory(Protocol):
    """`Segment.create`, or another kind of memory with the same promises."""

    def __call__(self, key: str, size: int, *, region_id: int, mode: int) -> Memory: ...


class Pool:
    """Memory of this process that other processes of the server may map.

    Args:
        server: the server's name, as in segment names.
        role: "client", "worker" or "gateway".
        next_region_id: called for each new segment; an id that was never used before.
        mode: 0o600, or 0o660 when the server is open to a group.
        create: makes a segment, or raises SharedMemoryFull.
        retry_ns: how long growing is not tried again after it failed.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        server: str,
        role: str,
        next_region_id: Callable[[], int],
        *,
        limit_bytes: int = ARENA_BYTES_MAX,
        mode: int = 0o600,
        create: CreateMemory = Segment.create,
        retry_ns: int = RETRY_NS,
    ) -> None:
        self._server = server
        self._role = role
        self._create = create
        self._next_region_id = next_region_id
        self._mode = mode
        self._arena = Arena(limit_bytes, min(SEGMENT_BYTES_MIN, limit_bytes))
        self._segments: dict[int, Memory] = {}
        self._views: dict[int, memoryview] = {}
        self._new: list[Region] = []
        self._returned: deque[Range] = deque()
        self._lock = threading.Lock()
        self._retry_after_ns = retry_ns
        self._retry_ns = 0
        self._trim_ns = 0
        self._warned = False
        self._allocations = self._refusals = self._created = self._removed = 0

    def allocate(self, size: int) -> Loan | None:
        """`size` bytes, aligned to a cache line, of unknown content; None: send it inline.

        When a segment had to be made for it, `new_regions` names it: announce it before the loan.
        """
        with self._lock:
            if self._returned:
                self._collect()
            lent = self._arena.allocate(size)
            if lent is None:
                lent = self._arena.allocate(size) if self._grow(size) else None
                if lent is None:
                    self._refusals += 1
                    return None
            self._allocations += 1
            region_id, offset, _, _ = lent
            view = self._views[region_id][offset : offset + size]
            return Loan(lent, view, self._returned)

    def view(self, region_id: int, offset: int, size: int) -> memoryview | None:
        """Bytes of one of the segments, writable; None when it is none of this arena's.

        For results that were written into a loan. Raises RequestError when they are outside.
        """
        found = self._views.get(region_id)
        if found is None:
            return None
        checked_range(offset, size, len(found), region_id)
        return found[offset : offset + size]

    def new_regions(self) -> tuple[Region, ...]:
        """Segments made since the last call."""
        if not self._new:
            return ()
        with self._lock:
            new, self._new = tuple(self._new), []
            return new

    def regions(self) -> tuple[Region, ...]:
        """All segments, to be announced to a broker that knows none."""
        with self._lock:
            self._new = []
            return tuple(segment.region for segment in self._segments.values())

    def trim(self, low_bytes: int = LOW_BYTES) -> tuple[int, ...]:
        """Unlink segments that were not needed since the last call; returns their region ids."""
        with self._lock:
            self._collect()
            gone = self._arena.trimmable(low_bytes)
            for region_id in gone:
                self._arena.remove_segment(region_id)
                del self._views[region_id]
                self._segments.pop(region_id).close()
                self._new = [region for region in self._new if region.id != region_id]
            self._removed += len(gone)
            return gone

    def trim_when_due(self, now_ns: int) -> tuple[int, ...]:
        """`trim`, but at most every TRIM_SECONDS; costs nothing in between.

        Returns the ids of unlinked regions: a client then tells the broker to forget them.
        """
        if now_ns < self._trim_ns:
            return ()
        self._trim_ns = now_ns + TRIM_SECONDS * 1_000_000_000
        return self.trim()

    def counters(self) -> PoolCounters:
        with self._lock:
            self._collect()
            arena = self._arena
            return PoolCounters(
                arena.total_bytes,
                arena.used_bytes,
                self._allocations,
                self._refusals,
                self._created,
                self._removed,
            )

    def close(self, leave: Collection[int] = ()) -> None:
        """Unlink everything but the regions to `leave`; views that still live stay mapped."""
        with self._lock:
            self._views.clear()
            for region_id, segment in self._segments.items():
                if region_id in leave:
                    segment.abandon()
                else:
                    segment.close()
            self._segments.clear()
            self._new.clear()
            self._returned = deque()  # loans of before append to the old one
            self._arena = Arena(self._arena.limit_bytes, self._arena.segment_bytes_min)
            self._retry_ns = _NEVER_NS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_invariants(self) -> None:
        with self._lock:
            self._collect()
            self._arena.check_invariants()
            sizes = {key: segment.region.size for key, segment in self._segments.items()}
            assert self._arena.segments() == sizes

    def _collect(self) -> None:
        while self._returned:
            self._arena.release(self._returned.popleft())

    def _grow(self, size: int) -> bool:
        """One more segment, the size the arena would like or else just what is needed."""
        now_ns = time.monotonic_ns()
        if now_ns < self._retry_ns:
            return False
        wanted = self._arena.needs(size)
        if not wanted:
            self._warn(f"the arena's limit of {self._arena.limit_bytes} bytes is reached")
            return False
        least = aligned_up(index_size(size_index(size)), PAGE_BYTES)
        fault = f"{free_bytes()} bytes of /dev/shm are free, {min(least, wanted)} are needed"
        for segment_bytes in sorted({wanted, min(least, wanted)}, reverse=True):
            if segment_bytes > free_bytes():
                continue  # what is sure to fail would first take all that is left from others
            try:
                self._add(segment_bytes)
            except SharedMemoryFull as full:
                fault = full.message
                continue
            return True
        self._retry_ns = now_ns + self._retry_after_ns
        self._warn(fault)
        return False

    def _add(self, segment_bytes: int) -> None:
        key = segment_name(self._server, self._role, os.getpid(), os.urandom(RANDOM_BYTES))
        region_id = self._next_region_id()
        segment = self._create(key, segment_bytes, region_id=region_id, mode=self._mode)
        self._segments[region_id] = segment
        self._views[region_id] = segment.view
        self._arena.add_segment(region_id, segment_bytes)
        self._new.append(segment.region)
        self._created += 1

    def _warn(self, fault: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "no room in shared memory, so tensors travel inside messages, which is slower: %s",
                fault,
            )


_NEVER_NS: Final = 1 << 63

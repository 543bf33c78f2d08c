"""The slot page: one small file in which a worker says what it is doing, readable after its death.

The worker owns and writes it (SlotPage); the broker opens it at SLOT_HELLO and keeps it open
(PageReader), so that it can read the last words of a dead worker although a new one of the same
slot name has made a new page meanwhile: a page is renamed into place, never written over.
It never decides anything: what a batch id means is the broker's business.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from enum import IntEnum
from typing import Final, NamedTuple, Self

PAGE_BYTES: Final = 4096
MAGIC: Final = b"NAIADPG1"
_LAYOUT: Final = struct.Struct("<8sQQQIIQQ")

_EXECUTING: Final = 1
_STARTED: Final = 2
_EXECUTIONS: Final = 3
_PHASE_AND_PID: Final = 4
_IO_FAULTS: Final = 5
_BEGUN: Final = 6
"""Indexes of 64-bit words. Every field is written as one aligned word, so that a process killed
between two instructions never leaves half a number (struct.pack_into writes byte by byte)."""


class Phase(IntEnum):
    """What the worker does. UNLOADING and DONE: its lost connection is no reason to kill it."""

    EMPTY = 0
    LOADING = 1
    READY = 2
    EXECUTING = 3
    UNLOADING = 4
    DONE = 5


class PageState(NamedTuple):
    """What a page says. `executing` is a batch id, 0 for none; `started_ns` is CLOCK_MONOTONIC.

    `begun` is the newest batch that was ever executing: one that has ended since may still be
    executed again if its results died on their way.
    """

    executing: int
    started_ns: int
    executions: int
    phase: int
    pid: int
    io_faults: int
    begun: int


class SlotPage:
    """The worker's end of its page."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._words: memoryview[int] = memoryview(bytearray(PAGE_BYTES)).cast("Q")

    def start(self) -> None:
        """Create the file, all of its bytes allocated, under its final name.

        Raises OSError when the directory cannot be written or is full.
        """
        if sys.byteorder != "little":
            raise OSError("the slot page is little-endian, and this machine is not")
        temporary = f"{self.path}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            start = _LAYOUT.pack(MAGIC, 0, 0, 0, Phase.EMPTY, os.getpid(), 0, 0)
            os.write(descriptor, start.ljust(PAGE_BYTES, b"\0"))
            self._map = mmap.mmap(descriptor, PAGE_BYTES)
            os.rename(temporary, self.path)
        except OSError:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")

    def begin(self, batch: int, now_ns: int) -> None:
        """Batch `batch` is executed from now on: if the process dies, this one is suspect."""
        words = self._words
        words[_STARTED] = now_ns
        words[_BEGUN] = batch
        words[_EXECUTING] = batch

    def end(self) -> None:
        """The results were sent (or are kept for a broker that is away): nothing is executed."""
        words = self._words
        words[_EXECUTING] = 0
        words[_EXECUTIONS] += 1

    def set_phase(self, phase: Phase) -> None:
        self._words[_PHASE_AND_PID] = os.getpid() << 32 | phase

    def count_io_faults(self, count: int) -> None:
        """Shared memory could not be had (full, no permission): outputs went inline instead."""
        self._words[_IO_FAULTS] += count

    def close(self) -> None:
        """Leave the file, for the broker to read; the next worker of this slot replaces it."""
        if self._map is not None:
            self._words.release()
            self._words = memoryview(bytearray(PAGE_BYTES)).cast("Q")
            self._map.close()
            self._map = None


class PageReader:
    """The broker's end: a private descriptor of the page of one particular process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: str) -> Self:
        """Raises OSError when there is no page."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))

    def read(self) -> PageState | None:
        """The page as it is now (after a death: as it was left); None when it is not a page."""
        content = os.pread(self._descriptor, _LAYOUT.size, 0)
        if len(content) != _LAYOUT.size:
            return None
        magic, *fields = _LAYOUT.unpack(content)
        return PageState(*fields) if magic == MAGIC else None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

"""Mapped memory that says goodbye: whoever told a device of it can take that back in time.

A device that reads and writes this memory by itself (CUDA, after cudaHostRegister) must be told
before the pages go, and they go at different moments: when a region is forgotten, when its mapping
makes room for others, or when the last view of it dies. Knows nothing of devices.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final

BLOCK_BYTES: Final = 512
"""What st_blocks counts."""


class MappedMemory(mmap.mmap):
    """Made as an mmap is. It is unmapped when it and the last view of it are gone: never close it,
    which would tell nobody."""

    _goodbyes: tuple[Callable[[], object], ...] = ()
    _descriptor: int | None = None

    def told_by(self, descriptor: int | None) -> None:
        """What tells how much of it there is, as long as that is open; None from then on."""
        self._descriptor = -1 if descriptor is None else descriptor

    def missing_bytes(self) -> int:
        """Of a sparse object, what nobody has written so far: whoever pins it makes it real.

        All of it, where that cannot be told any more.
        """
        if self._descriptor is None:
            return 0
        if self._descriptor < 0:
            return len(self)
        return max(0, len(self) - os.fstat(self._descriptor).st_blocks * BLOCK_BYTES)

    def before_unmap(self, call: Callable[[], object]) -> None:
        """Call this, from whichever thread drops the memory, while it is still mapped."""
        self._goodbyes = (*self._goodbyes, call)

    def __del__(self) -> None:
        for call in self._goodbyes:
            call()

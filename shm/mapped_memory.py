"""Mapped memory that says goodbye: whoever told a device of it can take that back in time.

A device that reads and writes this memory by itself (CUDA, after cudaHostRegister) must be told
before the pages go, and they go at different moments: when a region is forgotten, when its mapping
makes room for others, or when the last view of it dies. Knows nothing of devices.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable


class MappedMemory(mmap.mmap):
    """Made as an mmap is. It is unmapped when it and the last view of it are gone: never close it,
    which would tell nobody."""

    _goodbyes: tuple[Callable[[], object], ...] = ()

    def before_unmap(self, call: Callable[[], object]) -> None:
        """Call this, from whichever thread drops the memory, while it is still mapped."""
        self._goodbyes = (*self._goodbyes, call)

    def __del__(self) -> None:
        for call in self._goodbyes:
            call()

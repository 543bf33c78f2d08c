"""Memory for what a client has announced and may never send."""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np

MAPPED_BYTES_MIN: Final = 1024 * 1024
"""Bodies from here on lie in pages that cost nothing before they are written."""


def memory_for(size: int) -> memoryview:
    """Writable memory; physical only as far as it is written."""
    if size < MAPPED_BYTES_MIN:
        # Not a bytearray, which writes zeros: its pages cost memory before anything has come.
        return np.empty(size, np.uint8).data
    return memoryview(mmap.mmap(-1, size))

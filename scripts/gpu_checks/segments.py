"""The names of the shared memory that steps make, so that whoever ends a step can remove it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHM: Final = "/dev/shm"
SEGMENT_PREFIX: Final = "naiad-gpu-check-"


def sweep(pid: int) -> None:
    """Remove what a process that was killed could not."""
    for left in Path(SHM).glob(f"{SEGMENT_PREFIX}{pid}-*"):
        left.unlink(missing_ok=True)

"""Memory with a segment's promises but no shared memory: for a pool without /dev/shm."""

from __future__ import annotations

from naiad.protocol.messages import Region
from naiad.shm.segment import SharedMemoryFull


class HeapSegment:
    """Process-private bytes under a key."""

    def __init__(self, key: str, size: int, *, region_id: int, mode: int) -> None:
        assert mode in (0o600, 0o660)
        self.region = Region(region_id, key, 0, id(self), size)
        self.view = memoryview(bytearray(size))
        self.is_closed = False

    def close(self) -> bool:
        self.is_closed = True
        return True

    def abandon(self) -> bool:
        return self.close()


class HeapOf:
    """Makes heap segments until `limit_bytes` are taken; then it is full."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.segments: list[HeapSegment] = []

    def __call__(self, key: str, size: int, *, region_id: int, mode: int) -> HeapSegment:
        taken = sum(segment.region.size for segment in self.segments if not segment.is_closed)
        if taken + size > self.limit_bytes:
            raise SharedMemoryFull(f"{size} bytes do not fit")
        self.segments.append(HeapSegment(key, size, region_id=region_id, mode=mode))
        return self.segments[-1]

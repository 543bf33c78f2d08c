"""Client memory as one worker sees it, and when a forgotten region is really unmapped.

Ids are those of one broker's life: a new incarnation gets a new table; what still waits keeps the
old one. A truncation before a read is that request's error here; during a read it is a SIGBUS,
which only the broker can deal with. Never creates, resizes or unlinks a segment.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from naiad.protocol.messages import Region
from naiad.shm.cuda.key import is_cuda
from naiad.shm.mappings import Mappings
from naiad.worker.device_regions import DeviceRegions


class RegionTable:
    """All regions that one broker has defined for this worker. `device` is for tests."""

    def __init__(self, device: DeviceRegions | None = None) -> None:
        self._mappings = Mappings(writable=True)
        self._memory: dict[int, weakref.ref[object]] = {}
        self._leaving: dict[int, weakref.ref[object]] = {}
        self.device = device or DeviceRegions()
        self.device_ids: set[int] = set()
        """Regions of GPU memory; all others are segments."""

    def define(self, regions: Iterable[Region]) -> None:
        """Raises ProtocolError when an id comes to mean another region."""
        segments = []
        for region in regions:
            if is_cuda(region):
                self.device.define(region)
                self.device_ids.add(region.id)
            else:
                segments.append(region)
        self._mappings.define(segments)

    def readable(self, region: int, offset: int, size: int) -> memoryview:
        """A read-only view of `size` bytes. Raises RequestError when they cannot be had."""
        return self._noted(region, self._mappings.view(region, offset, size))

    def writable(self, region: int, offset: int, size: int) -> memoryview:
        """A writable view of `size` bytes. Raises RequestError when they cannot be had."""
        return self._noted(region, self._mappings.view(region, offset, size, writable=True))

    def copy(self, region: int, offset: int, size: int) -> memoryview:
        """A private copy of `size` bytes. Raises RequestError when they cannot be had."""
        return memoryview(self._mappings.copy(region, offset, size))

    def forget(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Let go of regions; returns those that are unmapped, `sweep` tells of the others."""
        ids = tuple(ids)
        self._mappings.forget(ids)
        for ident in ids:
            memory = self._memory.pop(ident, None)
            if memory is not None and memory() is not None:
                self._leaving[ident] = memory
        if not self.device_ids.isdisjoint(ids):
            self.device_ids.difference_update(ids)
            self._leaving.update(self.device.forget(ids))
        return tuple([ident for ident in ids if ident not in self._leaving])

    @property
    def is_leaving(self) -> bool:
        """Whether `sweep` has something to look at."""
        return bool(self._leaving)

    def sweep(self) -> tuple[int, ...]:
        """Regions forgotten earlier whose last view (a model had kept an input) died meanwhile."""
        gone = tuple([ident for ident, memory in self._leaving.items() if memory() is None])
        for ident in gone:
            del self._leaving[ident]
        return gone

    def _noted(self, region: int, view: memoryview) -> memoryview:
        """Remember which object keeps the region mapped."""
        memory = self._memory.get(region)
        if memory is None or memory() is not view.obj:
            self._memory[region] = weakref.ref(view.obj)
        return view

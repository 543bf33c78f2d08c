"""Client memory as one worker sees it: regions mapped at first use, unmapped when forgotten.

Ids are those of one broker's life: a new incarnation gets a new table. A truncation before a read
is that request's error here; during a read it is a SIGBUS, which only the broker can deal with.
Never creates, resizes or unlinks a segment.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from naiad.protocol.errors import InternalError
from naiad.protocol.messages import Region
from naiad.shm.segment import Mapping


class RegionTable:
    """All regions that one broker has defined for this worker."""

    def __init__(self) -> None:
        self._defined: dict[int, Region] = {}
        self._mapped: dict[int, Mapping] = {}
        self._leaving: dict[int, Callable[[], object]] = {}

    def define(self, regions: Iterable[Region]) -> None:
        for region in regions:
            self._defined[region.id] = region

    def readable(self, region: int, offset: int, size: int) -> memoryview:
        """A read-only view of `size` bytes. Raises RequestError when they cannot be had."""
        return self._mapping(region).slice(offset, size)

    def writable(self, region: int, offset: int, size: int) -> memoryview:
        """A writable view of `size` bytes. Raises RequestError when they cannot be had."""
        return self._mapping(region).slice(offset, size, writable=True)

    def copy(self, region: int, offset: int, size: int) -> memoryview:
        """A private copy of `size` bytes. Raises RequestError when they cannot be had."""
        return memoryview(self._mapping(region).copy(offset, size))

    def forget(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Let go of regions; returns those that are unmapped, `sweep` tells of the others."""
        gone = []
        for ident in ids:
            self._defined.pop(ident, None)
            mapping = self._mapped.pop(ident, None)
            alive = None if mapping is None else weakref.ref(mapping.slice(0, 0).obj)
            if mapping is None or alive is None or mapping.close():
                gone.append(ident)
            else:
                self._leaving[ident] = alive
        return tuple(gone)

    @property
    def is_leaving(self) -> bool:
        """Whether `sweep` has something to look at."""
        return bool(self._leaving)

    def sweep(self) -> tuple[int, ...]:
        """Regions forgotten earlier whose last view (a model had kept an input) died meanwhile."""
        gone = tuple([ident for ident, alive in self._leaving.items() if alive() is None])
        for ident in gone:
            del self._leaving[ident]
        return gone

    def _mapping(self, ident: int) -> Mapping:
        mapping = self._mapped.get(ident)
        if mapping is None:
            region = self._defined.get(ident)
            if region is None:
                raise InternalError(f"the broker never told this worker about region {ident}")
            mapping = self._mapped[ident] = Mapping.open(region, writable=True)
        return mapping

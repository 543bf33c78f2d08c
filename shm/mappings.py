"""Other processes' segments by region id: defined once, mapped on first use, forgotten on demand.

A worker keeps its clients' regions here, a client the output arenas of workers. Owns the mappings,
never the segments: nothing here creates or unlinks one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Self

from naiad.protocol.errors import Code, ProtocolError, RequestError
from naiad.protocol.messages import Region
from naiad.shm.objects import is_same
from naiad.shm.segment import Mapping

MAPPINGS_MAX: Final = 256
"""Segments mapped at a time; each takes a file descriptor (two before Python 3.13)."""
DEFINITIONS_MAX: Final = 1 << 16


class Mappings:
    """Views of regions by id.

    `writable`: map for writing too (a worker); a client only reads what workers wrote. `uids`: who
    may own the segments, None for this process's own user.
    """

    def __init__(
        self,
        *,
        writable: bool,
        uids: Collection[int] | None = None,
        mappings_max: int = MAPPINGS_MAX,
    ) -> None:
        self._writable = writable
        self._uids = uids
        self._mappings_max = mappings_max
        self._regions: dict[int, Region] = {}
        self._open: dict[int, Mapping] = {}

    def __contains__(self, region_id: object) -> bool:
        return region_id in self._regions

    def __len__(self) -> int:
        return len(self._regions)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def define(self, regions: Iterable[Region]) -> None:
        """Learn regions; defining the same one again changes nothing.

        Raises ProtocolError when an id comes to mean another segment: ids are never reused.
        """
        for region in regions:
            known = self._regions.get(region.id)
            if known is None:
                if len(self._regions) >= DEFINITIONS_MAX:
                    raise ProtocolError(f"more than {DEFINITIONS_MAX} regions are defined")
                self._regions[region.id] = region
            elif known != region:
                raise ProtocolError(
                    f"region {region.id} was {known.key} of {known.size} bytes and is now said to "
                    f"be {region.key} of {region.size} bytes; a new region needs a new id"
                )

    def mapping(self, region_id: int) -> Mapping:
        """The mapped region. Raises RequestError as `Mapping.open`, or when it is not defined."""
        found = self._open.get(region_id)
        return self._opened(region_id) if found is None else found

    def _opened(self, region_id: int) -> Mapping:
        region = self._regions.get(region_id)
        if region is None:
            raise RequestError(
                f"Unable to find shared memory region: '{region_id}'", code=Code.NOT_FOUND
            )
        while len(self._open) >= self._mappings_max:
            self._open.pop(next(iter(self._open))).close()
        try:
            found = Mapping.open(region, writable=self._writable, uids=self._uids)
        except RequestError as fault:
            if not self._writable or fault.code is not Code.PERMISSION_DENIED:
                raise
            found = Mapping.open(region, writable=False, uids=self._uids)
        self._open[region_id] = found
        return found

    def view(self, region_id: int, offset: int, size: int, *, writable: bool = False) -> memoryview:
        """The bytes themselves, checked against the registered and the current size.

        They stay mapped while the view lives, also when the region is forgotten meanwhile.
        """
        return self.mapping(region_id).slice(offset, size, writable=writable)

    def copy(self, region_id: int, offset: int, size: int) -> bytes:
        """A private copy of the bytes, for what is parsed (BYTES, shape tensors)."""
        return self.mapping(region_id).copy(offset, size)

    def forget(self, region_ids: Iterable[int]) -> tuple[int, ...]:
        """Unmap regions and drop their definitions; unknown ids are forgotten already.

        Returns those of which a view still lives: the last view unmaps them.
        """
        busy = []
        for region_id in region_ids:
            self._regions.pop(region_id, None)
            found = self._open.pop(region_id, None)
            if found is not None and not found.close():
                busy.append(region_id)
        return tuple(busy)

    def forget_unlinked(self) -> tuple[int, ...]:
        """Forget what its owner has given up: the key names something else, or nothing."""
        gone = tuple(region.id for region in self._regions.values() if not is_same(region))
        self.forget(gone)
        return gone

    def close(self) -> None:
        self.forget(tuple(self._regions))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Shared memory of simulated clients: segments in slots, lent to one request at a time.

A client's own regions are registered with each broker. Named ones belong to the server, survive it
and are used by every client; they end when the operator unregisters them.
"""

from __future__ import annotations

from random import Random

from naiad.protocol import messages as m
from naiad.shm.cuda.key import cuda_region
from support.simulated_ledger import Ledger

SLOT_BYTES = 65_536
SLOTS = 8
REGION_BYTES = SLOTS * SLOT_BYTES

Place = tuple[int, int]
"""(region id, offset) of a slot."""


class Slots:
    """Free slots of regions. Who takes one writes its token there, as the ledger sees it."""

    def __init__(self, ledger: Ledger, random: Random) -> None:
        self._ledger = ledger
        self._random = random
        self._free: list[Place] = []
        self.keys: dict[int, str] = {}
        """Of every region there ever was: a dead one may still be written to."""
        self.open: set[int] = set()
        self.gpus: dict[int, int] = {}
        """Of those regions that are memory on one."""

    def add(self, region: int, key: str) -> None:
        self.keys[region] = key
        self.open.add(region)
        self._free += [(region, slot * SLOT_BYTES) for slot in range(SLOTS)]

    def close(self, region: int) -> None:
        """No slot of it is given out any more."""
        self.open.discard(region)
        self._free = [place for place in self._free if place[0] != region]

    def take(self, token: int, beside: Place | None = None) -> Place | None:
        """A free one; `beside` another in GPU memory: not on another GPU."""
        gpu = None if beside is None else self.gpus.get(beside[0])
        found = [one for one in self._free if gpu is None or self.gpus.get(one[0], gpu) == gpu]
        if not found:
            return None
        place = self._random.choice(found)
        self._free.remove(place)
        self._ledger.lend(self.keys[place[0]], place[1], token)
        return place

    def give_back(self, place: Place) -> None:
        self._ledger.take_back(self.keys[place[0]], place[1])
        if place[0] in self.open:
            self._free.append(place)

    def end(self) -> None:
        """The owner is gone, and its segments with the last who uses them."""
        for key in self.keys.values():
            self._ledger.end_segment(key)


class OwnRegions(Slots):
    """One client's regions, under ids that it chooses and never uses again."""

    def __init__(self, ledger: Ledger, random: Random, owner: int) -> None:
        super().__init__(ledger, random)
        self._owner = owner
        self._next = 0
        self.registered: set[int] = set()

    def make(self, gpu: int | None = None) -> m.Region:
        self._next += 1
        if gpu is not None:
            self.gpus[self._next] = gpu
        region = self.describe(self._next)
        self.add(self._next, region.key)
        return region

    def describe(self, ident: int) -> m.Region:
        gpu = self.gpus.get(ident)
        if gpu is not None:
            handle = b"%32d%32d" % (self._owner, ident)
            return cuda_region(handle, REGION_BYTES, gpu, f"of {self._owner}", region_id=ident)
        key = f"/naiad.sim.client.{self._owner}.{ident}"
        return m.Region(ident, key, 1, self._owner * 100 + ident, REGION_BYTES)

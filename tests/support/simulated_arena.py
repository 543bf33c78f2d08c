"""A simulated worker's output arena: slots lent to clients until RETURN names the request."""

from __future__ import annotations

from naiad.protocol import messages as m
from support.simulated_ledger import Ledger

SLOT_BYTES = 65_536
Lease = tuple[int, int]
"""(session, request id)."""


class Arena:
    """`leases` are what is lent; a slot is used again only after its lease has ended."""

    def __init__(self, ledger: Ledger, pid: int) -> None:
        self._ledger = ledger
        self.region = m.Region(2**61 + pid, f"/naiad.sim.worker.{pid}", 1, pid, 2**30)
        self.leases: dict[Lease, list[int]] = {}
        self.told: tuple[m.Region, ...] = ()
        """What the broker has been told of already."""
        self._next_offset = 0
        self._free: list[int] = []

    def tell(self) -> tuple[m.Region, ...]:
        """New to the broker, for the next RESULTS."""
        if self.told or not self.leases:
            return ()
        self.told = (self.region,)
        return self.told

    def lend(self, lease: Lease, token: int) -> int:
        """Offset of a slot that now holds the request's result."""
        if self._free:
            offset = self._free.pop()
        else:
            offset, self._next_offset = self._next_offset, self._next_offset + SLOT_BYTES
        self._ledger.lend(self.region.key, offset, token)
        self.leases.setdefault(lease, []).append(offset)
        return offset

    def end(self, lease: Lease) -> None:
        """RETURN; one that is not lent is not an error, as it may be told twice."""
        for offset in self.leases.pop(lease, ()):
            self._ledger.take_back(self.region.key, offset)
            self._free.append(offset)

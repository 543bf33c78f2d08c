"""A worker's results in its own segments, each leased to a request until its client releases it.

Owns one Pool and the book of its leases. When the worker dies its segments stay until the last
lease has ended; then the broker's janitor unlinks them.
"""

from __future__ import annotations

import secrets
import threading

from naiad.protocol.errors import Unavailable
from naiad.protocol.messages import BatchRequest, Region
from naiad.shm.layout import WORKER_ROLE
from naiad.shm.leases import LEASED_REQUESTS_MAX, Leases
from naiad.shm.pool import ARENA_BYTES_MAX, Loan, Pool, PoolCounters


def worker_region_id() -> int:
    """An id that no other worker chooses and that no client or server region has: bit 61 is set."""
    return 1 << 61 | secrets.randbits(61)


class OutputArena:
    """A worker's results: leased per (session, request) until released.

    All methods may be called from any thread: a worker says hello while it executes.
    """

    def __init__(
        self,
        server: str,
        *,
        limit_bytes: int = ARENA_BYTES_MAX,
        leases_max: int = LEASED_REQUESTS_MAX,
        mode: int = 0o600,
    ) -> None:
        self.pool = Pool(server, WORKER_ROLE, worker_region_id, limit_bytes=limit_bytes, mode=mode)
        self._leases: Leases[Loan] = Leases(leases_max)
        self._lock = threading.Lock()

    def lease(self, session: int, request: int, size: int) -> Loan | None:
        """Bytes for one output of a request; None: no room, send it inline.

        Announce `new_arenas` with the results. Raises Unavailable when too many are leased.
        """
        loan = self.pool.allocate(size)
        if loan is None:
            return None
        try:
            with self._lock:
                self._leases.add(session, request, loan)
        except Unavailable:
            loan.release()
            raise
        return loan

    def lend(self, request: BatchRequest, content: memoryview | bytes) -> tuple[int, int] | None:
        """Lease a copy of one output's bytes to its request; (region id, offset).

        None when there is no room, or when too much is leased already: send it inline.
        """
        view = memoryview(content).cast("B")
        try:
            loan = self.lease(request.session, request.id, len(view))
        except Unavailable:
            return None
        if loan is None:
            return None
        loan.view[:] = view
        return loan.region, loan.offset

    def end(self, session: int, request: int) -> bool:
        """The request's outputs are no longer read; False when it has none (said twice)."""
        with self._lock:
            ended = self._leases.end(session, request)
        return _released(ended)

    def end_session(self, session: int) -> bool:
        """Nothing of the session is read any more."""
        with self._lock:
            ended = self._leases.end_session(session)
        return _released(ended)

    def leases(self) -> tuple[tuple[int, int], ...]:
        """(session, request) of every lease, for SLOT_HELLO."""
        with self._lock:
            return self._leases.keys()

    def arenas(self) -> tuple[Region, ...]:
        """All segments, for SLOT_HELLO."""
        return self.pool.regions()

    def new_arenas(self) -> tuple[Region, ...]:
        """Segments made since the last call, for RESULTS."""
        return self.pool.new_regions()

    def counters(self) -> PoolCounters:
        return self.pool.counters()

    def trim_when_due(self, now_ns: int) -> tuple[int, ...]:
        """Give idle memory back; call it in every turn of the loop (see Pool)."""
        return self.pool.trim_when_due(now_ns)

    def close(self) -> None:
        """Unlink what nobody reads; the broker removes the rest when its last lease has ended."""
        with self._lock:
            leased = {loan.region for loan in self._leases.held()}
            self._leases = Leases(self._leases.requests_max)
        self.pool.close(leave=leased)


def _released(loans: list[Loan]) -> bool:
    for loan in loans:
        loan.release()
    return bool(loans)

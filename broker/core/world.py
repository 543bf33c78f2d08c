"""Everything the scheduler knows, in one record that its parts share, and the limits it obeys."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from naiad.broker.core.deadlines import NEVER_NS, Deadlines
from naiad.broker.core.events import Action, Log, TellFault
from naiad.broker.core.instances import Instance, Slot
from naiad.broker.core.job import Job
from naiad.broker.core.models import Model, ModelVersion
from naiad.broker.core.sessions import Session
from naiad.broker.core.statistics import ServerCounters
from naiad.protocol.errors import InternalError, NaiadError
from naiad.protocol.messages import Region

SECOND_NS = 1_000_000_000
NAMED_REGION_BASE = 2**62
"""Ids from here on are regions registered by name, owned by the server."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Named bounds of one broker. Bytes, nanoseconds or counts, as the names say."""

    session_requests_max: int = 4096
    session_bytes_max: int = 512 * 1024 * 1024
    session_regions_max: int = 1024
    user_requests_max: int = 2048
    user_bytes_max: int = 256 * 1024 * 1024
    """Of one accounting key of a session; 0: no limit. Half of what the session may have, so that
    one user leaves room for others."""
    sessions_max: int = 4096
    named_regions_max: int = 4096
    inline_bytes_max: int = 64 * 1024 * 1024
    absence_ns: int = 2 * SECOND_NS
    """How long a lost client or, after a restart, a known worker may stay away."""
    slot_wait_ns: int = 5 * SECOND_NS
    """How long a reload waits for slots that do not come before it swaps with fewer instances."""
    turn_ns: int = 60 * SECOND_NS
    """How long a load onto a GPU may keep other new ones off it."""
    stop_grace_ns: int = 30 * SECOND_NS
    kill_ns: int = 10 * SECOND_NS
    """How long a killed worker may take to die until it is LOST: it cannot be killed."""
    lost_workers_max: int = 3
    """Killed workers of one instance, or spares of one device, that do not die at one time: each
    keeps its memory. With so many it gets no other before one of them is dead."""
    drain_kill_ns: int = SECOND_NS
    """The same when the server's time to drain is over, and it ends."""
    unwanted_grace_ns: int = SECOND_NS
    """At the server's end, for a worker that executes or loads what nobody waits for any more."""
    retry_first_ns: int = SECOND_NS
    retry_last_ns: int = 60 * SECOND_NS
    restart_first_ns: int = 100_000_000
    spares: int = 1
    cores: int = 1


class World:
    """Shared state of the scheduler's parts. `now_ns` is the time of the event being handled."""

    def __init__(
        self,
        *,
        incarnation: int,
        server: str,
        first_number: int,
        limits: Limits,
        gpus: Sequence[str] = (),
    ) -> None:
        self.incarnation = incarnation
        self.gpus = tuple(gpus)
        """Devices ("gpu:<uuid>"), numbered as in `gpus` of an instance group."""
        self.server = server
        self.about: dict[str, int] = {}
        """What the status tells of the process itself: pid, started (Unix seconds)."""
        self.limits = limits
        self.now_ns = 0
        self.wall_ms = 0
        self.actions: list[Action] = []
        self.sessions: dict[int, Session] = {}
        self.slots: dict[int, Slot] = {}
        self.instances: dict[int, Instance] = {}
        self.models: dict[str, Model] = {}
        self.retiring: list[ModelVersion] = []
        self.found: dict[tuple[str, int], ModelVersion] = {}
        self.deadlines = Deadlines()
        self.dirty: dict[ModelVersion, None] = {}
        self.counters = ServerCounters()
        self.regions: dict[int, Region] = {}
        self.named_regions: dict[str, NamedRegion] = {}
        self.named_by_id: dict[int, NamedRegion] = {}
        self.lent_arenas: dict[int, Region] = {}
        """Worker arenas that leases point into, also when their worker is dead."""
        self.draining = False
        self.recovering = False
        self.scanning = False
        """It is not known yet which models are served from the start."""
        self._number = first_number
        self._timers: list[tuple[int, int, Callable[[], None]]] = []

    def number(self) -> int:
        """A number never used before, also not by an earlier broker: it starts from the time."""
        self._number += 1
        return self._number

    def log(self, level: str, text: str) -> None:
        self.actions.append(Log(level, text))

    def blame(self, raised: Exception, what: str) -> NaiadError:
        """The error for who asked for `what`, when this was raised by it.

        Anything but a NaiadError is a fault of the broker. Where nothing is half done after it, it
        shall cost that one thing and not the broker: the same would be asked of the next one.
        """
        if isinstance(raised, NaiadError):
            return raised
        self.counters.internal_faults += 1
        self.actions.append(TellFault(what, raised))
        return InternalError(f"{what} failed by a fault of the server itself; its log says where")

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        """Call `what` at a time. Timers are not cancelled: `what` looks before it acts."""
        heapq.heappush(self._timers, (when_ns, self.number(), what))

    def next_timer_ns(self) -> int:
        return self._timers[0][0] if self._timers else NEVER_NS

    def run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self.now_ns:
            heapq.heappop(self._timers)[2]()

    def uncount_early(self, job: Job) -> None:
        """A job that was sent early counts as queued no more, and its time in the queue is over."""
        job.model.queue.level_of(job).early -= 1
        if job.deadline_ns:
            self.deadlines.discard(job)

    def wake(self, model: ModelVersion) -> None:
        """The model's queue or instances changed: look at it once all events are handled."""
        self.dirty[model] = None

    def name_region(self, named: NamedRegion) -> None:
        self.regions[named.region.id] = named.region
        self.named_regions[named.name] = named
        self.named_by_id[named.region.id] = named

    def living_keys(self) -> set[str]:
        """Segments that must stay although their owner may be dead, or that surely live."""
        leased = {arena for session in self.sessions.values() for arena, _ in session.leases}
        self.lent_arenas = {i: one for i, one in self.lent_arenas.items() if i in leased}
        arenas = [one for slot in self.slots.values() for one in slot.arenas.values()]
        return {one.key for one in (*self.lent_arenas.values(), *arenas, *self.regions.values())}

    def forget_lookups(self) -> None:
        self.found.clear()

    def jobs(self) -> list[Job]:
        return [job for session in self.sessions.values() for job in session.jobs.values()]


@dataclass(slots=True)
class NamedRegion:
    """A region registered by name (KServe's shared memory extension); the server's own."""

    name: str
    region: Region
    offset: int
    size: int

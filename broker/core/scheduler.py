"""The broker's decisions: `actions = scheduler.handle(events, now_ns)`.

A pure function of its events and the time given with them: no clock, socket, file, lock or log.
`deadline_ns()` says when to call again at the latest. The shell (broker/loop.py) does what the
actions say, in their order. The parts share one World; each has one concern:

    client_events, worker_events   what an event concerns, in which order
    admission   a request in                 dispatch    batches out
    accounts    what users have in flight    lanes       whose turn it is
    results     results in                   withdrawal  requests that end without a result
    answers     to clients, once each        deadlines   of what is queued
    fleet       processes wanted, stopped    loading     instances into slots
    deaths      what dead workers had        restarts    when instances start again
    catalog     models load and unload       endings     versions that serve no more
    scans       what is asked of the repository, and generation: what was found there
    succession  which generation serves      uploads     files that came with loads
    memory      regions and leases           named_regions, closings   those of the server
    control     operations, answered by queries, status, listing, counters, log_settings
    recovery    after a restart of the broker, with saved_models
    drain       the end                      invariants  what tests check after each step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from naiad.broker.core import events as e
from naiad.broker.core.admission import Admission
from naiad.broker.core.answers import Answers
from naiad.broker.core.catalog import Catalog
from naiad.broker.core.client_events import ClientEvents
from naiad.broker.core.closings import Closings
from naiad.broker.core.control import Control
from naiad.broker.core.counters import Counters
from naiad.broker.core.deaths import Deaths
from naiad.broker.core.dispatch import Dispatch
from naiad.broker.core.drain import Drain
from naiad.broker.core.endings import Endings
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.invariants import check_invariants
from naiad.broker.core.listing import Listing
from naiad.broker.core.loading import Loading
from naiad.broker.core.log_settings import LogSettings
from naiad.broker.core.memory import Memory
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.named_regions import NamedRegions
from naiad.broker.core.queries import Queries
from naiad.broker.core.recovery import Recovery
from naiad.broker.core.restarts import Restarts
from naiad.broker.core.results import Results
from naiad.broker.core.saved_models import (
    restore_failures,
    restore_models,
    saved_failures,
    saved_models,
)
from naiad.broker.core.status import Status
from naiad.broker.core.uploads import Uploads
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.worker_events import WorkerEvents
from naiad.broker.core.world import Limits, NamedRegion, World
from naiad.config.log_levels import INITIAL
from naiad.protocol import messages as m

STATE_FORMAT: Final = 5


class Scheduler:
    """One broker's mind. All times are integer nanoseconds of one monotonic clock."""

    def __init__(
        self,
        *,
        incarnation: int,
        server: str,
        software: str,
        first_number: int,
        explicit: bool = False,
        limits: Limits | None = None,
        identity: str = "",
        strict_readiness: bool = True,
        log_levels: m.LogLevels = INITIAL,
        log_file: str = "",
        allow_files: bool = False,
        auto_complete: bool = True,
        gpus: Sequence[str] = (),
    ) -> None:
        """`first_number`: ids start here; it must be larger than any earlier broker's."""
        limits = limits or Limits()
        self.world = World(
            incarnation=incarnation,
            server=server,
            first_number=first_number,
            limits=limits,
            gpus=gpus,
        )
        self._answers = Answers(self.world)
        self._fleet = Fleet(self.world)
        self._dispatch = Dispatch(self.world, self._answers, self._fleet)
        self._results = Results(self.world, self._answers, self._dispatch)
        self._withdrawal = Withdrawal(self.world, self._answers)
        self._admission = Admission(self.world, self._answers, self._dispatch)
        self._endings = Endings(self.world, self._withdrawal, self._fleet, self._settled)
        self._loading = Loading(
            self.world, self._fleet, self._endings, self._settled, auto_complete=auto_complete
        )
        self._uploads = Uploads(self.world, allow_files)
        self._catalog = Catalog(
            self.world,
            self._fleet,
            self._endings,
            self._loading,
            self._uploads,
            explicit=explicit,
        )
        self._closings = Closings(self.world)
        self._memory = Memory(self.world, self._results, self._withdrawal, self._closings)
        self._regions = NamedRegions(self.world, self._memory.withdraw, self._closings)
        self._recovery = Recovery(
            self.world,
            self._answers,
            self._admission,
            self._dispatch,
            self._results,
            self._withdrawal,
            self._fleet,
            self._loading,
            self._memory,
        )
        deaths = Deaths(
            self.world,
            self._answers,
            self._dispatch,
            self._fleet,
            self._endings,
            self._loading,
            Restarts(self.world, self._fleet, self._endings, self._loading),
        )
        self._fleet.when_lost = deaths.lost
        self._workers = WorkerEvents(
            self.world, self._results, self._fleet, self._loading, deaths, self._recovery
        )
        self._clients = ClientEvents(
            self.world,
            self._answers,
            self._admission,
            self._withdrawal,
            self._memory,
            self._recovery,
            software,
        )
        queries = Queries(
            self.world,
            self._catalog,
            self._admission,
            software,
            identity=identity,
            strict_readiness=strict_readiness,
        )
        self._listing = Listing(self.world, self._catalog, queries)
        self._log_settings = LogSettings(self.world, log_levels, log_file)
        self._control = Control(
            self.world,
            self._catalog,
            queries,
            Status(self.world, queries),
            self._listing,
            Counters(self.world, queries),
            self._regions,
            self._log_settings,
        )
        self._drain = Drain(
            self.world, self._answers, self._withdrawal, self._fleet, self._recovery
        )
        self._handlers = self._table()

    def _table(self) -> dict[type[Any], Callable[[Any], None]]:
        """Who takes which event: the parts' own methods, nothing is called in between."""
        return {
            e.RequestsArrived: self._clients.requests_arrived,
            e.BatchFinished: self._workers.batch_finished,
            e.SessionOpened: self._clients.session_opened,
            e.SessionLost: self._clients.session_lost,
            e.SessionEnded: self._session_ended,
            e.CancelAsked: self._clients.cancel_asked,
            e.LeasesReleased: self._clients.leases_released,
            e.RegionOffered: self._clients.region_offered,
            e.RegionDropped: self._clients.region_dropped,
            e.ControlAsked: self._control.asked,
            e.NamedRegionStated: lambda event: self._regions.stated(*event),
            e.NamedRegionsGone: self._regions_gone,
            e.SlotOpened: self._workers.slot_opened,
            e.SlotSilent: self._workers.slot_silent,
            e.SlotDied: self._workers.slot_died,
            e.InstanceLoaded: self._workers.instance_loaded,
            e.BatchesGivenBack: self._workers.batches_given_back,
            e.RegionsForgotten: self._closings.forgotten,
            e.SupervisorOpened: self._supervisor_opened,
            e.RepositoryScanned: self._repository_scanned,
            e.RoomWasShort: self._workers.room_was_short,
            e.PeersFaulted: self._peers_faulted,
            e.TimePassed: lambda event: None,
            e.FaultArose: self._control.failed,
            e.DrainAsked: lambda event: self._drain.begin(event.until_ns),
        }

    def _repository_scanned(self, event: e.RepositoryScanned) -> None:
        if not self._listing.listed(event):
            self._catalog.scanned(*event[:-1])

    def _regions_gone(self, event: e.NamedRegionsGone) -> None:
        self._regions.forget(event.names)

    def _supervisor_opened(self, _: e.SupervisorOpened) -> None:
        self._log_settings.announce()
        self._fleet.want(again=True)

    def _peers_faulted(self, event: e.PeersFaulted) -> None:
        self.world.counters.protocol_errors += event.messages
        self.world.counters.dropped_sessions += event.sessions

    def _session_ended(self, event: e.SessionEnded) -> None:
        self._log_settings.forget(event.session)
        self._clients.session_ended(event)

    # --- the contract ------------------------------------------------------------------

    def start(
        self, names: tuple[str, ...] | None, saved: dict[str, Any] | None, now_ns: int
    ) -> list[e.Action]:
        """Begin with `names` to load (None: all), and what an earlier broker left, if it crashed.

        `saved` is its snapshot. Its models serve on, whether a worker has them or not; `names` are
        loaded only if it did not come to that, or ended in peace.
        """
        self.world.now_ns = now_ns
        known = saved if saved is not None and saved.get("format") == STATE_FORMAT else None
        if known is not None:
            self._restore(known)
        self._log_settings.announce()
        self._uploads.announce()
        if known is None or not known.get("scanned"):
            self._catalog.start(names)
        else:
            self._catalog.settled_once = True
        if known is not None:
            self._recovery.start(known["slots"])
        self._fleet.want(again=True)
        self.world.actions.append(e.SaveState())
        return self._take_actions()

    def handle(self, events: Sequence[e.Event], now_ns: int, wall_ms: int = 0) -> list[e.Action]:
        """Take in what happened, in order, and decide once for all of it.

        Args:
            events: everything since the last call; may be empty (time passed).
            now_ns: monotonic time, never earlier than in the last call.
            wall_ms: Unix time for `last_inference`; decides nothing.
        """
        world = self.world
        world.now_ns = now_ns
        if wall_ms:
            world.wall_ms = wall_ms
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event)
        if world.next_timer_ns() <= now_ns:
            world.run_timers()
        if self._closings.has_waiting:
            self._closings.look()
        if self._recovery.has_refused:
            self._recovery.look_again()
        if world.deadlines.is_active:
            self._withdrawal.expire()
        if world.dirty:
            self._dispatch.schedule()
        if world.retiring:
            self._endings.check_retired()
        if world.draining:
            self._drain.check()
        self._answers.flush()
        return self._take_actions()

    def deadline_ns(self) -> int:
        """When handle() must be called again at the latest; NEVER_NS (2**63 - 1) for never."""
        timer_ns = self.world.next_timer_ns()
        deadline_ns = self.world.deadlines.next_ns()
        return timer_ns if timer_ns < deadline_ns else deadline_ns

    def snapshot(self) -> dict[str, Any]:
        """What survives the broker: desired models, named regions, the ledger of slots, and
        whose clients may read what workers lent.

        Of one that has quit only the regions: the next one reads the repository anew.
        """
        has_quit = self._drain.has_quit
        return {
            "format": STATE_FORMAT,
            "slots": self._recovery.ledger(),
            "scanned": self._catalog.has_scanned and not has_quit,
            "models": [] if has_quit else saved_models(self.world),
            "failures": [] if has_quit else saved_failures(self.world),
            "regions": [
                (one.name, tuple(one.region), one.offset, one.size)
                for one in self.world.named_regions.values()
            ],
            "sessions": self._clients.saved(),
            "log": self._log_settings.saved(),
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        for name, region, offset, size in saved["regions"]:
            self.world.name_region(NamedRegion(name, m.Region(*region), offset, size))
        restore_models(self.world, self._uploads, saved["models"])
        restore_failures(self.world, saved["failures"])
        self._clients.restore(saved["sessions"])
        self._log_settings.restore(saved["log"])

    def _settled(self, model: ModelVersion) -> None:
        """A version became READY or UNAVAILABLE; who says so is built before the catalog."""
        self._catalog.settled(model)

    def _take_actions(self) -> list[e.Action]:
        actions, self.world.actions = self.world.actions, []
        return actions

    def check_invariants(self) -> None:
        """For tests: assert what must hold between two calls of handle()."""
        check_invariants(self.world)

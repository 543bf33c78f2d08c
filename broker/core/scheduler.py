"""The broker's decisions: `actions = scheduler.handle(events, now_ns)`.

A pure function of its events and the time given with them: no clock, socket, file, lock or log.
`deadline_ns()` says when to call again at the latest. The shell (broker/loop.py) does what the
actions say, in their order. The parts share one World; each has one concern:

    admission   a request in           dispatch    batches out
    results     results in             withdrawal  requests that end without a result
    fleet       workers come and die   catalog     models load and unload
    memory      regions and leases     recovery    after a restart of the broker
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from naiad.broker.core import events as e
from naiad.broker.core.admission import Admission
from naiad.broker.core.answers import Answers, cancelled_error
from naiad.broker.core.catalog import Catalog
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.dispatch import Dispatch
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.job import JobState
from naiad.broker.core.memory import Memory
from naiad.broker.core.queries import Queries, text_argument, version_argument
from naiad.broker.core.recovery import Recovery
from naiad.broker.core.results import Results
from naiad.broker.core.sessions import Session
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.world import Limits, NamedRegion, World
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable

STATE_FORMAT: Final = 1


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
    ) -> None:
        """`first_number`: ids start here; it must be larger than any earlier broker's."""
        limits = limits or Limits()
        self.world = World(
            incarnation=incarnation, server=server, first_number=first_number, limits=limits
        )
        self._answers = Answers(self.world)
        self._dispatch = Dispatch(self.world, self._answers)
        self._results = Results(self.world, self._answers, self._dispatch)
        self._withdrawal = Withdrawal(self.world, self._answers)
        self._admission = Admission(self.world, self._answers, self._dispatch)
        self._catalog = Catalog(self.world, explicit=explicit)
        self._fleet = Fleet(
            self.world, self._answers, self._dispatch, self._withdrawal, self._catalog.settled
        )
        self._catalog.fleet = self._fleet
        self._memory = Memory(self.world, self._results, self._withdrawal)
        self._recovery = Recovery(
            self.world,
            self._answers,
            self._admission,
            self._dispatch,
            self._results,
            self._withdrawal,
            self._fleet,
            self._memory,
        )
        self._queries = Queries(self.world, self._catalog, self._admission, software)
        self._software = software
        self._quit = False
        self._drain_until_ns = NEVER_NS
        self._operations: dict[str, Callable[[Session, int, m.Parameters, bytes], Any]] = {
            "live": lambda s, c, a, p: {"live": True},
            "ready": lambda s, c, a, p: {"ready": self._queries.is_ready()},
            "model_ready": lambda s, c, a, p: {
                "ready": self._queries.model_ready(text_argument(a, "model"), version_argument(a))
            },
            "server_metadata": lambda s, c, a, p: self._queries.server_metadata(),
            "model_metadata": lambda s, c, a, p: self._queries.model_metadata(
                text_argument(a, "model"), version_argument(a)
            ),
            "model_config": lambda s, c, a, p: self._queries.model_config(
                text_argument(a, "model"), version_argument(a)
            ),
            "statistics": lambda s, c, a, p: self._queries.statistics(
                str(a.get("model", "")), version_argument(a)
            ),
            "index": lambda s, c, a, p: self._queries.index(a.get("ready") is True),
            "status": lambda s, c, a, p: self._queries.status(),
            "load": self._load,
            "unload": self._unload,
            "region_register": lambda s, c, a, p: self._memory.register(s, c, a),
            "region_status": lambda s, c, a, p: self._memory.region_status(a),
            "region_unregister": lambda s, c, a, p: self._memory.unregister(a),
        }
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            e.RequestsArrived: self._requests_arrived,
            e.BatchFinished: self._batch_finished,
            e.SessionOpened: self._session_opened,
            e.SessionLost: self._session_lost,
            e.SessionEnded: self._session_ended,
            e.CancelAsked: self._cancel_asked,
            e.LeasesReleased: self._leases_released,
            e.RegionOffered: self._region_offered,
            e.RegionDropped: self._region_dropped,
            e.ControlAsked: self._control_asked,
            e.NamedRegionStated: self._named_region_stated,
            e.NamedRegionsGone: lambda event: self._memory.forget_named(event.names),
            e.SlotOpened: self._slot_opened,
            e.SlotSilent: self._slot_silent,
            e.SlotDied: self._slot_died,
            e.InstanceLoaded: self._instance_loaded,
            e.RegionsForgotten: lambda event: None,
            e.SupervisorOpened: lambda event: self._fleet.want(again=True),
            e.RepositoryScanned: lambda event: self._catalog.scanned(*event),
            e.RoomWasShort: self._room_was_short,
            e.TimePassed: lambda event: None,
            e.DrainAsked: lambda event: self.drain(event.until_ns),
        }

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
        if self._recovery.has_refused:
            self._recovery.look_again()
        if world.deadlines.is_active:
            self._withdrawal.expire()
        if world.dirty:
            self._dispatch.schedule()
        if world.retiring:
            self._fleet.check_retired()
        if world.draining:
            self._check_drained()
        self._answers.flush()
        return self._take_actions()

    def deadline_ns(self) -> int:
        """When handle() must be called again at the latest; NEVER_NS (2**63 - 1) for never."""
        timer_ns = self.world.next_timer_ns()
        deadline_ns = self.world.deadlines.next_ns()
        return timer_ns if timer_ns < deadline_ns else deadline_ns

    def snapshot(self) -> dict[str, Any]:
        """What survives the broker: desired models, named regions, the ledger of slots.

        Of one that has quit only the regions: the next one reads the repository anew.
        """
        return {
            "format": STATE_FORMAT,
            "slots": self._recovery.ledger(),
            "scanned": self._catalog.has_scanned and not self._quit,
            "models": [] if self._quit else self._catalog.saved_models(),
            "regions": [
                (one.name, tuple(one.region), one.offset, one.size)
                for one in self.world.named_regions.values()
            ],
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        for name, region, offset, size in saved["regions"]:
            self.world.name_region(NamedRegion(name, m.Region(*region), offset, size))
        self._catalog.restore(saved["models"])

    def _take_actions(self) -> list[e.Action]:
        actions, self.world.actions = self.world.actions, []
        return actions

    # --- clients -----------------------------------------------------------------------

    def _requests_arrived(self, event: e.RequestsArrived) -> None:
        session = self.world.sessions.get(event.session)
        if session is None:
            return
        admit = self._admission.admit
        frames = event.frames
        jobs = session.jobs
        for request in event.requests:
            if request.attempt > 1:
                self._recovery.resent(session, request, frames)
            elif request.id in jobs or request.id in session.zombies:
                fault = RequestError(
                    f"request id {request.id} is in flight already; ids are never reused",
                    code=Code.ALREADY_EXISTS,
                )
                self.world.actions.append(e.CloseSession(session.key, fault))
                return
            else:
                admit(session, request, frames)

    def _session_opened(self, event: e.SessionOpened) -> None:
        world = self.world
        session = world.sessions.get(event.session)
        resumed = session is not None
        if session is None:
            if len(world.sessions) >= world.limits.sessions_max:
                fault = Unavailable(
                    f"{len(world.sessions)} clients are connected, at most"
                    f" {world.limits.sessions_max}; close some",
                    code=Code.BUDGET_EXCEEDED,
                )
                world.actions.append(e.CloseSession(event.session, fault))
                return
            session = world.sessions[event.session] = Session(event.session, event.role, event.pid)
        self._answers.hold(session)
        session.connected = True
        limits = world.limits
        welcome = m.Welcome(
            world.incarnation, world.server, self._software, limits.session_requests_max,
            limits.session_bytes_max, limits.inline_bytes_max, resumed,
        )  # fmt: skip
        world.actions.append(e.TellSession(session.key, welcome))
        self._answers.reopen(session)
        for arena, request_id in event.leases:
            # 0: after a restart of the broker its worker may come later than the client.
            slot = self._memory.slot_of_arena(arena)
            session.leases[(arena, request_id)] = slot or 0

    def _session_lost(self, event: e.SessionLost) -> None:
        session = self.world.sessions.get(event.session)
        if session is None:
            return
        session.connected = False
        session.lost_ns = lost_ns = self.world.now_ns

        def absent() -> None:
            if not session.connected and session.lost_ns == lost_ns:
                self._session_absent(session)

        self.world.at(lost_ns + self.world.limits.absence_ns, absent)

    def _session_absent(self, session: Session) -> None:
        """It stays away, but may be alive (stopped, say) and read or own memory all the same.

        Its queued work is dropped; what it holds ends only when its process is known to be dead.
        """
        for job in list(session.jobs.values()):
            if job.state is JobState.QUEUED:
                self._withdrawal.drop(job)
        holds = session.jobs or session.zombies or session.leases or session.regions
        if not holds or not session.pid:
            self._end_session(session)

    def _session_ended(self, event: e.SessionEnded) -> None:
        session = self.world.sessions.get(event.session)
        if session is not None:
            self._end_session(session)

    def _end_session(self, session: Session) -> None:
        """Nobody waits for its answers any more: cancel, forget its memory, end its leases."""
        if session.ended:
            return
        session.ended = True
        self.world.sessions.pop(session.key, None)
        self.world.actions.append(e.ForgetSession(session.key))
        for job in list(session.jobs.values()):
            self._withdrawal.cancel(job, cancelled_error())
        self._memory.session_ended(session)

    def _cancel_asked(self, event: e.CancelAsked) -> None:
        session = self.world.sessions.get(event.session)
        if session is None:
            return
        for request_id in event.ids:
            job = session.jobs.get(request_id)
            if job is not None:
                self._withdrawal.cancel(job, cancelled_error())
            else:
                self._recovery.cancel(session, request_id)

    def _leases_released(self, event: e.LeasesReleased) -> None:
        session = self.world.sessions.get(event.session)
        if session is not None:
            self._memory.released(session, event.leases)

    def _region_offered(self, event: e.RegionOffered) -> None:
        session = self.world.sessions.get(event.session)
        if session is not None:
            self._memory.offered(session, event.call, event.region, event.fault)

    def _region_dropped(self, event: e.RegionDropped) -> None:
        session = self.world.sessions.get(event.session)
        if session is not None:
            self._memory.dropped(session, event.call, event.id)

    def _named_region_stated(self, event: e.NamedRegionStated) -> None:
        self._memory.stated(
            event.session,
            event.call,
            event.name,
            event.region,
            event.fault,
            event.offset,
            event.size,
        )

    # --- control -----------------------------------------------------------------------

    def _control_asked(self, event: e.ControlAsked) -> None:
        session = self.world.sessions.get(event.session)
        if session is None:
            return
        fault: NaiadError | None = None
        result: Any = None
        operation = self._operations.get(event.operation)
        try:
            if operation is None:
                raise RequestError(
                    f"unknown operation {event.operation!r}; known are"
                    f" {', '.join(sorted(self._operations))}",
                    code=Code.UNSUPPORTED,
                )
            result = operation(session, event.call, event.arguments, event.payload)
            if result is None:
                return  # answered later
        except NaiadError as raised:
            fault = raised
        self.world.actions.append(e.SendReply(session.key, event.call, fault, result))

    def _load(self, session: Session, call: int, arguments: m.Parameters, payload: bytes) -> None:
        name = text_argument(arguments, "model")
        try:
            override = payload.decode() if payload else None
        except UnicodeDecodeError as fault:
            raise RequestError(f"Invalid config override: not UTF-8: {fault}") from fault
        self._catalog.load(name, (session.key, call), override)

    def _unload(self, session: Session, call: int, arguments: m.Parameters, _: bytes) -> None:
        self._catalog.unload(text_argument(arguments, "model"), (session.key, call))

    # --- workers -----------------------------------------------------------------------

    def _slot_opened(self, event: e.SlotOpened) -> None:
        if self._recovery.is_condemned(event.slot):
            return
        known = event.slot in self.world.slots
        slot = self._fleet.opened(event.slot, event.hello, event.pid)
        if slot.silent:
            return
        if known:
            self._recovery.reconnected(slot, event.hello)
        else:
            self._recovery.adopt(slot, event.hello)
        self._recovery.heard(slot.key)
        self._fleet.assign()
        self.world.actions.append(e.SaveState())

    def _slot_silent(self, event: e.SlotSilent) -> None:
        slot = self.world.slots.get(event.slot)
        if slot is not None:
            self._fleet.silent(slot)

    def _slot_died(self, event: e.SlotDied) -> None:
        self._recovery.heard(event.slot)
        slot = self.world.slots.get(event.slot)
        if slot is not None:
            self._fleet.died(slot, event)

    def _instance_loaded(self, event: e.InstanceLoaded) -> None:
        slot = self.world.slots.get(event.slot)
        if slot is not None:
            self._fleet.loaded(slot, event.instance, event.error, event.load_ns, event.config)

    def _room_was_short(self, event: e.RoomWasShort) -> None:
        self.world.counters.inline_fallbacks += event.outputs

    def _batch_finished(self, event: e.BatchFinished) -> None:
        slot = self.world.slots.get(event.slot)
        if slot is not None:
            self._results.finished(slot, event.results, event.frames)

    # --- the end -----------------------------------------------------------------------

    def drain(self, until_ns: int) -> None:
        """Accept nothing new, finish what is there, stop every worker; Quit follows."""
        world = self.world
        if world.draining:
            return
        world.draining = True
        world.log("info", "draining: nothing new is accepted")
        self._drain_until_ns = until_ns
        if until_ns != NEVER_NS:
            world.at(until_ns, self._drain_overdue)
        for instance in list(world.instances.values()):
            if instance.slot is None and len(instance.model.queue):
                self._drain_hopeless(instance.model)
        self._fleet.want(again=True)

    def _drain_hopeless(self, model: Any) -> None:
        if any(one.slot is not None for one in model.instances):
            return
        self._withdrawal.fail_queued(model, _stopping())

    def _check_drained(self) -> None:
        world = self.world
        if self._quit or not self._recovery.is_complete:
            return  # an earlier broker's workers are told to stop when they say hello
        for model in dict.fromkeys(instance.model for instance in world.instances.values()):
            if len(model.queue):
                self._drain_hopeless(model)
        if any(session.jobs for session in world.sessions.values()):
            return
        for slot in list(world.slots.values()):
            if not slot.stopping:
                self._fleet.stop_slot(slot, brief=slot.is_occupied)
        if not world.slots:
            self._quit = True
            world.actions.append(e.SaveState())
            world.actions.append(e.Quit(0))

    def _drain_overdue(self) -> None:
        if self._quit:
            return
        world = self.world
        world.log("error", "the drain time is over: requests in flight are given up")
        for session in world.sessions.values():
            for job in list(session.jobs.values()):
                if job.state is JobState.QUEUED:
                    self._withdrawal.unqueue(job)
                self._answers.fail(job, _stopping())
        for slot in world.slots.values():
            self._fleet.kill(slot, "the drain time is over")
        self._quit = True
        world.actions.append(e.SaveState())
        world.actions.append(e.Quit(1))

    # --- for tests ---------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert what must hold between two calls of handle()."""
        world = self.world
        placed = {id(job) for job in world.jobs()}
        for model in {one.model for one in world.instances.values()}:
            model.queue.check_invariants()
            for job in model.queue.jobs():
                assert job.state is JobState.QUEUED, job
                assert id(job) in placed, f"{job} is queued but its session does not know it"
            early = 0
            for instance in model.instances:
                slot = instance.slot
                if slot is None:
                    continue
                assert slot.instance is instance
                for batch in slot.batches():
                    rows = sum(job.rows for job in batch.jobs if job is not None)
                    assert batch.keys or rows <= max(1, model.batch_policy.rows_max)
                if slot.early is not None:
                    assert slot.current is not None, "an early batch without a running one"
                    early += sum(
                        1 for job in slot.early.jobs if job and job.state is JobState.EARLY
                    )
            counted = sum(level.early for level in model.queue.all_levels())
            assert counted == early, f"{model}: {counted} early jobs counted, {early} there"
        for session in world.sessions.values():
            for ident, job in session.jobs.items():
                assert job.request.id == ident
                assert job.state in (JobState.QUEUED, JobState.EARLY, JobState.EXECUTING), job
            inline = sum(job.inline_bytes for job in session.jobs.values())
            assert session.bytes == inline, f"{session.bytes} bytes counted, {inline} there"


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping", code=Code.DRAINING)

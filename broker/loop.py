"""The broker's loop: poll, drain, decode, decide once, act.

One thread owns everything. It never waits for anything but the poll, never touches a tensor's
bytes, and decides nothing: what happened becomes events, `Scheduler.handle` turns them into
actions, and those are performed in order.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Final

from naiad.broker.clients import Clients
from naiad.broker.core import events as e
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.scheduler import Scheduler
from naiad.broker.liveness import Liveness
from naiad.broker.log import Log
from naiad.broker.repository import RepositoryHelper
from naiad.broker.signals import Signals
from naiad.broker.state import StateFile
from naiad.broker.timer import Timer
from naiad.broker.uploads import Uploads
from naiad.broker.waiting import WRITABLE, Waiting
from naiad.broker.workers import Workers
from naiad.shm.janitor import Janitor

OUTBOX_RETRY_MS: Final = 5
"""libzmq does not say when a full peer reads again, so its outbox is tried at this pace."""
YOUNG_COLLECTIONS_MAX: Final = 10
"""After so many of the youngest objects, those that lived through them are looked at as well."""
IDLE_COLLECT_MS: Final = 1000
OBJECTS_PER_COLLECTION_MAX: Final = 50_000
"""More containers than at the last collection, by so many. Reference counting frees nearly all that
a turn makes, so it is cycles (of exceptions and their frames) or a queue that grows."""
HOUSEKEEPING_NS: Final = 1_000_000_000
SWEPT_ENTRIES_MAX: Final = 64


class Loop:
    """`run` serves until the scheduler quits; the exit code."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clients: Clients,
        workers: Workers,
        liveness: Liveness,
        repository: RepositoryHelper,
        state: StateFile,
        uploads: Uploads,
        log: Log,
        drain_ns: int,
    ) -> None:
        self._scheduler = scheduler
        self._clients = clients
        self._workers = workers
        self._liveness = liveness
        self._repository = repository
        self._state = state
        self._log = log
        self._drain_ns = drain_ns
        self._janitor = Janitor(scheduler.world.server)
        self._timer = Timer()
        self._signals = Signals()
        self._waiting = Waiting()
        self._helper_descriptor = -1
        self._helper_descriptor_to_flush = -1
        self._exit_code: int | None = None
        self._must_save = False
        self._events_since_collection = 0
        self._housekeeping_ns = 0
        self._performers: dict[type[Any], Callable[[Any], None]] = {
            e.SendAnswers: clients.send_answers,
            e.SendBatch: workers.send_batch,
            e.TellSession: clients.tell,
            e.TellSlot: workers.tell,
            e.SendReply: clients.reply,
            e.CloseSession: clients.refuse_session,
            e.ForgetSession: clients.forget_session,
            e.KillSlot: workers.kill,
            e.TellSupervisor: workers.tell_supervisor,
            e.ScanRepository: repository.ask,
            e.KeepUploads: uploads.perform,
            e.StatNamedRegion: clients.stat_named_region,
            e.SaveState: lambda action: None,  # done by now, see _handle
            e.Log: lambda action: log.write(action.level, action.text),
            e.TellFault: lambda action: log.fault(action.what, action.fault),
            e.SetLogLevels: self._set_log_levels,
            e.Quit: self._quit,
        }

    def run(self, names: tuple[str, ...] | None, saved: dict[str, Any] | None) -> int:
        """Serve. `names` and `saved` as Scheduler.start takes them."""
        self._timer.start()
        self._signals.start()
        clients, workers = self._clients.transport, self._workers.transport
        self._waiting.watch_sockets((clients, workers))
        for descriptor in (
            clients.monitor_descriptor,
            workers.monitor_descriptor,
            self._timer.descriptor,
            self._signals.descriptor,
            self._liveness.descriptor,
        ):
            self._waiting.watch(descriptor)
        self._perform(self._scheduler.start(names, saved, time.monotonic_ns()))
        self._must_save = True  # once it is known who of an earlier broker's lives
        if saved is not None:
            self._handle([*self._clients.expect(saved), *self._workers.expect(saved)])
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            while self._exit_code is None:
                self._turn()
        finally:
            self._close()
        return self._exit_code

    def _turn(self) -> None:
        ready = self._wait()
        events: list[e.Event] = []
        is_somebody_gone = False
        is_helper_silent = True
        for descriptor in ready:
            if descriptor == self._workers.transport.descriptor:
                events += self._workers.drain()
            elif descriptor == self._clients.transport.descriptor:
                events += self._clients.drain()
            elif descriptor == self._timer.descriptor:
                self._timer.fired()
            elif descriptor == self._signals.descriptor:
                events += self._heed_signals()
            elif descriptor == self._helper_descriptor:
                events += self._repository.answers()
                is_helper_silent = False
            elif descriptor == self._helper_descriptor_to_flush:
                self._repository.flush()
            else:
                is_somebody_gone = True
        if is_helper_silent and self._repository.deadline_ns != NEVER_NS:
            events += self._repository.overdue(time.monotonic_ns())
        # Deaths after messages: a worker's last results count although it is dead now.
        if is_somebody_gone:
            events += self._note_the_gone()
        if self._workers.has_suspects:
            events += self._workers.settled_deaths(time.monotonic_ns())
        self._handle(events)

    def _note_the_gone(self) -> list[e.Event]:
        events = [*self._workers.disconnected(), *self._clients.disconnected()]
        for dead in self._liveness.dead():
            if dead.is_slot:
                self._workers.note_death(dead)
            else:
                events.append(e.SessionEnded(dead.key))
        return events

    def _wait(self) -> list[int]:
        self._watch_helper()
        deadline_ns = min(self._scheduler.deadline_ns(), self._repository.deadline_ns)
        if self._workers.has_suspects:
            deadline_ns = min(deadline_ns, self._workers.deadline_ns())
        if deadline_ns != NEVER_NS:
            self._timer.arm(deadline_ns)
        is_behind = (
            self._clients.transport.is_waiting
            or self._workers.transport.is_waiting
            or self._log.is_waiting
        )
        ready = self._waiting.wait(OUTBOX_RETRY_MS if is_behind else IDLE_COLLECT_MS)
        if is_behind:
            self._clients.flush()
            self._workers.transport.flush()
            self._log.flush()
        if not ready and self._events_since_collection:
            self._collect()
        return ready

    def _sweep(self) -> None:
        """Remove what dead clients and workers left in shared memory, a bounded piece at a time."""
        swept = self._janitor.sweep(self._scheduler.world.living_keys(), SWEPT_ENTRIES_MAX)
        if swept.removed:
            self._log.write(
                "info",
                f"removed {len(swept.removed)} shared memory segments of dead processes"
                f" ({swept.removed_bytes} bytes)",
            )

    def _watch_helper(self) -> None:
        """Poll the helper's pipes of now. Both old ones go first: numbers are used again."""
        reading, writing = self._repository.descriptor, self._repository.descriptor_to_flush
        if (reading, writing) == (self._helper_descriptor, self._helper_descriptor_to_flush):
            return
        for old in (self._helper_descriptor, self._helper_descriptor_to_flush):
            if old >= 0:
                self._waiting.unwatch(old)
        if reading >= 0:
            self._waiting.watch(reading)
        if writing >= 0:
            self._waiting.watch(writing, WRITABLE)
        self._helper_descriptor, self._helper_descriptor_to_flush = reading, writing

    def _handle(self, events: list[e.Event]) -> None:
        now_ns = time.monotonic_ns()
        if now_ns >= self._housekeeping_ns:
            self._housekeeping_ns = now_ns + HOUSEKEEPING_NS
            self._repository.rest()
            self._sweep()
            events += self._clients.named_regions_gone(self._scheduler.world.named_regions)
            events += self._workers.shortages()
        actions = self._scheduler.handle(events, now_ns, time.time_ns() // 1_000_000)
        if self._must_save or any(type(action) is e.SaveState for action in actions):
            # First: nobody is told what a broker that died in this moment would not know.
            self._must_save = False
            self._save()
        self._perform(actions)
        self._events_since_collection += len(events)
        young, middle, _ = gc.get_count()
        if young > OBJECTS_PER_COLLECTION_MAX:
            # Never all of them, which takes long when much is queued: that is for idle times.
            gc.collect(1 if middle >= YOUNG_COLLECTIONS_MAX else 0)

    def _perform(self, actions: list[e.Action]) -> None:
        performers = self._performers
        for action in actions:
            performers[type(action)](action)
        self._workers.send_batches()
        late = self._clients.take_late_events()
        if self._repository.refused:
            late += self._repository.refused
            self._repository.refused = []
        if late:
            self._handle(late)

    def _collect(self) -> None:
        """Reference counting frees nearly everything; this is for the rare cycle."""
        self._events_since_collection = 0
        gc.collect()

    def _save(self) -> None:
        snapshot = self._scheduler.snapshot()
        self._workers.complete_ledger(snapshot["slots"])
        self._clients.complete_sessions(snapshot["sessions"])
        snapshot["incarnation"] = self._scheduler.world.incarnation
        try:
            self._state.save(snapshot)
        except OSError as fault:
            self._log.write("error", f"the state file cannot be written: {fault}")

    def _heed_signals(self) -> list[e.Event]:
        for wants_exit in self._signals.taken():
            if wants_exit:
                self._log.write("warning", "second signal: exiting now")
                for slot in list(self._scheduler.world.slots):
                    self._workers.kill(e.KillSlot(slot, "the broker was told to exit at once"))
                self._exit_code = 1
            else:
                return [e.DrainAsked(time.monotonic_ns() + self._drain_ns)]
        return []

    def _set_log_levels(self, action: e.SetLogLevels) -> None:
        self._log.levels = action.levels
        self._workers.set_log_levels(action.levels)

    def _quit(self, action: e.Quit) -> None:
        self._exit_code = action.code

    def _close(self) -> None:
        """In this order: (1) no new messages, (2) the helper, (3) descriptors, (4) the lock last,
        so that the next broker finds nothing of ours in its way."""
        self._clients.flush()
        self._clients.transport.close()
        self._workers.transport.close()
        self._repository.close()
        self._liveness.close()
        self._timer.close()
        self._signals.close()
        if self._must_save:
            self._save()
        self._log.flush()
        self._state.close()

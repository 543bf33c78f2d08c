"""The broker of a simulation: the real Scheduler in a shell of simulated sockets and processes.

Owns who is connected, which processes live, the state file and every restart. As the real shell it
gathers events, lets the scheduler decide once, performs the actions in order, and sleeps until
`deadline_ns()`. After each decision the invariants are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import msgpack

from naiad.broker.core import events as e
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.scheduler import Scheduler
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.protocol.errors import RequestError
from support.simulated_checks import check_step
from support.simulated_client import SimulatedClient
from support.simulated_host import Repository, Supervisor
from support.simulated_ledger import Ledger, Record
from support.simulated_time import MICROSECOND, MILLISECOND, Agenda, Connection
from support.simulated_worker import SimulatedWorker

SUSPICION_NS = 100 * MILLISECOND


class Truth(Protocol):
    """Who keeps count of what happens to the editions of models."""

    def worker_died(self, directory: str, version: int) -> None: ...

    def load_failed(self, directory: str) -> None: ...

    def load_succeeded(self, directory: str) -> None: ...

    def executed(self, directory: str, version: int) -> None: ...


ErrorJudge = Callable[[SimulatedClient, Record, tuple[str, str, bool]], None]


class Server:
    """`start`, then let the agenda run. `judge_error` decides which error answers are right."""

    def __init__(
        self,
        agenda: Agenda,
        ledger: Ledger,
        random: Random,
        repository: Repository,
        *,
        explicit: bool,
        limits: Limits,
        judge_error: ErrorJudge,
    ) -> None:
        self.agenda = agenda
        self.ledger = ledger
        self.random = random
        self.repository = repository
        self.limits = limits
        self.explicit = explicit
        self.judge_error = judge_error
        self.scheduler: Scheduler
        self.truth: Truth
        self.supervisor = Supervisor(self)
        self.is_up = False
        self.exit_code: int | None = None
        self.restarts = 0
        self.steps = 0
        self.saved: dict[str, Any] | None = None
        self.workers: dict[int, SimulatedWorker] = {}
        """Living processes by key; a dead one leaves when the shell has told its death."""
        self.names: tuple[str, ...] | None = None
        self.replies: dict[int, Callable[[Any, Any], None]] = {}
        self._connections: list[Connection] = []
        """All of this broker's life, also those that have not said hello yet."""
        self._clients: dict[int, Connection] = {}
        self._slots: dict[int, Connection] = {}
        self._ordered: dict[int, str] = {}
        self._inbox: list[e.Event] = []
        self._turn_ns = NEVER_NS
        self._call = 0
        self._life = 0
        self._random_keys = Random(random.random())

    # --- being up and down ---------------------------------------------------------------

    def start(self) -> None:
        self._life += 1
        life = self._life
        self.scheduler = Scheduler(
            incarnation=self._random_keys.getrandbits(60) + 1,
            server="simulated",
            software="simulated",
            first_number=life * 10_000_000,
            explicit=self.explicit,
            limits=self.limits,
        )
        self.is_up = True
        saved = None if self.saved is None else _as_written(self.saved)
        self.ledger.tell(f"broker {life} starts, saved: {saved is not None}")
        actions = self.scheduler.start(self.names, saved, self.agenda.now_ns)
        self._perform(actions)
        for entry in (saved or {}).get("slots", ()):
            if entry["slot"] not in self.workers:
                self.tell(e.SlotDied(entry["slot"], "it died while the broker was away", 0, False))
        self.operator_opens()
        self.supervisor.opens()
        self._arm()

    def crash(self, away_ns: int) -> None:
        """SIGKILL: everything on its way and everything in memory is lost."""
        if not self.is_up:
            return
        self.ledger.tell("broker crashes")
        self.is_up = False
        self.restarts += 1
        self._inbox.clear()
        self._turn_ns = NEVER_NS
        self._ordered.clear()
        for connection in self._connections:
            if connection.is_open:
                self._cut(connection)
        self._connections.clear()
        self._clients.clear()
        self._slots.clear()
        self.replies.clear()
        self.agenda.after(away_ns, self.start)

    def _cut(self, connection: Connection) -> None:
        connection.cut()
        peer = connection.peer

        def noticed() -> None:
            if peer.connection is connection:
                peer.disconnected()

        self.agenda.after(self.random.randint(50, 2_000) * MICROSECOND, noticed)

    # --- events in, actions out ------------------------------------------------------------

    def tell(self, event: e.Event) -> None:
        """Something happened; the loop takes it at its next turn."""
        if self.is_up:
            self._inbox.append(event)
            self._wake(self.agenda.now_ns + self.random.randint(1, 60) * MICROSECOND)

    def _wake(self, when_ns: int) -> None:
        if when_ns >= self._turn_ns:
            return
        self._turn_ns = when_ns
        life = self._life

        def turn() -> None:
            if self._life == life and self.is_up and self._turn_ns == when_ns:
                self._turn_ns = NEVER_NS
                self._turn()

        self.agenda.at(when_ns, turn)

    def _turn(self) -> None:
        events, self._inbox = self._inbox, []
        # Deaths after messages, as in the real loop.
        events.sort(key=lambda event: type(event) is e.SlotDied)
        self._handle(events)

    def _handle(self, events: list[e.Event]) -> None:
        self.steps += 1
        now_ns = self.agenda.now_ns
        if self.ledger.tells:
            for event in events:
                self.ledger.tell(f"event {event}")
        actions = self.scheduler.handle(events, now_ns, now_ns // MILLISECOND)
        check_step(self.scheduler, now_ns, actions)
        self._perform(actions)
        self._arm()

    def _arm(self) -> None:
        deadline_ns = self.scheduler.deadline_ns() if self.is_up else NEVER_NS
        if deadline_ns != NEVER_NS:
            late_ns = self.random.randint(0, 120) * MICROSECOND
            self._wake(max(deadline_ns, self.agenda.now_ns) + late_ns)

    def _perform(self, actions: list[e.Action]) -> None:
        must_save = False
        for action in actions:
            if self.ledger.tells:
                self.ledger.tell(f"action {action}")
            match action:
                case e.SendAnswers(session, answers, regions, frames):
                    incarnation = self.scheduler.world.incarnation
                    self._to_client(
                        session, m.Answers(incarnation, tuple(answers), regions), frames
                    )
                case e.SendBatch(slot, batch, frames):
                    self._to_slot(slot, batch, frames)
                case e.TellSession(session, message):
                    self._to_client(session, message, [])
                case e.TellSlot(slot, message, frames):
                    self._to_slot(slot, message, frames)
                case e.SendReply(session, call, error, result):
                    self._reply(session, call, error, result)
                case e.CloseSession(session, error):
                    raise AssertionError(f"session {session} is closed: {error}")
                case e.KillSlot(slot, reason):
                    self._kill(slot, reason)
                case e.TellSupervisor(want):
                    self.supervisor.wants(want)
                case e.ScanRepository(token, names, _):
                    self.repository.ask(self, token, names)
                case e.StatNamedRegion(session, call, name, key, offset, size):
                    region = m.Region(0, key, 1, 7, 1 << 20)
                    self.tell(e.NamedRegionStated(session, call, name, region, None, offset, size))
                case e.SaveState():
                    must_save = True
                case e.Log():
                    pass
                case e.Quit(code):
                    self._quit(code)
        if must_save:
            self.saved = self.scheduler.snapshot()

    def _quit(self, code: int) -> None:
        self.exit_code = code
        self.is_up = False
        for connection in [*self._clients.values(), *self._slots.values()]:
            connection.is_open = False

    # --- clients -------------------------------------------------------------------------

    def connect_client(self, client: SimulatedClient) -> Connection | None:
        return self._connect(client, self._from_client)

    def _connect(
        self, peer: Any, to_broker: Callable[[Connection, Any], None]
    ) -> Connection | None:
        if not self.is_up:
            return None

        def to_peer(connection: Connection, message: Any) -> None:
            if peer.connection is connection:
                peer.received(*message)

        connection = Connection(
            self.agenda, self.random, peer=peer, to_broker=to_broker, to_peer=to_peer
        )
        self._connections.append(connection)
        return connection

    def _from_client(self, connection: Connection, received: Any) -> None:
        message, frames = received
        key = connection.peer.key
        if type(message) is m.Hello:
            self._clients[key] = connection
            self.tell(e.SessionOpened(key, message.role, 1, message.leases))
            return
        match message:
            case m.Infer(requests):
                self.tell(e.RequestsArrived(key, requests, frames))
            case m.Cancel(ids):
                self.tell(e.CancelAsked(key, ids))
            case m.Release(leases):
                self.tell(e.LeasesReleased(key, leases))
            case m.RegisterRegion(call, region):
                self.tell(e.RegionOffered(key, call, region, None))
            case m.ForgetRegion(call, ident):
                self.tell(e.RegionDropped(key, call, ident))
            case m.Bye():
                self._clients.pop(key, None)
                self.tell(e.SessionEnded(key))

    def _to_client(self, key: int, message: m.Message, frames: list[bytes]) -> None:
        connection = self._clients.get(key)
        if connection is not None:
            connection.down.send((message, frames))

    def break_client(self, client: SimulatedClient) -> None:
        connection = client.connection
        if connection is None or not connection.is_open:
            return
        self.ledger.tell(f"{client} loses its connection")
        self._cut(connection)

        def noticed() -> None:
            if self._clients.get(client.key) is connection:
                del self._clients[client.key]
                self.tell(e.SessionLost(client.key))

        self._soon(noticed)

    def client_dies(self, client: SimulatedClient) -> None:
        if not client.is_alive:
            return
        self.ledger.tell(f"{client} dies")
        client.die()
        connection = client.connection
        when_ns = self.agenda.now_ns if connection is None else connection.end()

        def noticed() -> None:
            if self._clients.pop(client.key, None) is not None and self.random.random() < 0.5:
                self.tell(e.SessionLost(client.key))
            self.tell(e.SessionEnded(client.key))

        self.agenda.at(when_ns + self.random.randint(1, 500) * MICROSECOND, noticed)

    def _soon(self, what: Callable[[], None]) -> None:
        life = self._life

        def now() -> None:
            if self._life == life:
                what()

        self.agenda.after(self.random.randint(20, 1_000) * MICROSECOND, now)

    # --- the operator --------------------------------------------------------------------

    def operator_opens(self) -> None:
        """The session that loads and unloads; it has no connection that could break."""
        self.tell(e.SessionOpened(OPERATOR, "operator", 2, ()))

    def control(
        self,
        operation: str,
        arguments: m.Parameters,
        replied: Callable[[RequestError | None, Any], None],
    ) -> None:
        self._call += 1
        self.replies[self._call] = replied
        self.tell(e.ControlAsked(OPERATOR, self._call, operation, arguments, b""))

    def _reply(self, session: int, call: int, error: Any, result: Any) -> None:
        if session == OPERATOR:
            self.replies.pop(call)(error, result)
        else:
            wire = None if error is None else error.wire()
            self._to_client(session, m.Reply(call, wire), [])

    # --- workers -------------------------------------------------------------------------

    def connect_worker(self, worker: SimulatedWorker) -> Connection | None:
        if self.is_up and worker.key in self._ordered:
            return None
        return self._connect(worker, self._from_worker)

    def _from_worker(self, connection: Connection, received: Any) -> None:
        message, frames = received
        worker = connection.peer
        match message:
            case m.SlotHello():
                self._slots[worker.key] = connection
                self.tell(e.SlotOpened(worker.key, message, worker.pid))
            case m.Loaded(instance, error, load_ns):
                config = None if error is not None else frames[0]
                self.tell(e.InstanceLoaded(worker.key, instance, error, load_ns, config))
            case m.Results():
                slot = self.scheduler.world.slots.get(worker.key)
                if slot and slot.current and slot.current.id == message.batch:
                    self.truth.executed(worker.load.directory, worker.load.version)
                self.tell(e.BatchFinished(worker.key, message, frames))
            case m.Forgotten(ids):
                self.tell(e.RegionsForgotten(worker.key, ids))

    def _to_slot(self, key: int, message: m.Message, frames: list[Any]) -> None:
        connection = self._slots.get(key)
        if connection is not None:
            connection.down.send((message, frames))

    def break_worker(self, worker: SimulatedWorker) -> None:
        """The connection breaks; unless it says hello again in time the process is fenced."""
        connection = worker.connection
        if connection is None or not connection.is_open or not worker.is_alive:
            return
        self.ledger.tell(f"{worker} loses its connection")
        self._cut(connection)
        if self._slots.get(worker.key) is connection:
            del self._slots[worker.key]

        def overdue() -> None:
            if worker.is_alive and worker.key not in self._slots:
                self.tell(e.SlotSilent(worker.key))
                self.worker_dies(worker, "killed: it stopped answering")

        life = self._life
        self.agenda.after(SUSPICION_NS, lambda: overdue() if self._life == life else None)

    def _kill(self, key: int, reason: str) -> None:
        worker = self.workers.get(key)
        if worker is not None:
            self._ordered[key] = reason
            self.worker_dies(worker, f"killed: {reason}")

    def worker_dies(self, worker: SimulatedWorker, reason: str, *, is_own: bool = False) -> None:
        """The process ends now. Its death counts once the shell has seen it, after its words."""
        if not worker.is_alive:
            return
        self.ledger.tell(f"{worker} dies: {reason}, executing {worker.page_batch}")
        worker.die()
        connection = worker.connection
        when_ns = self.agenda.now_ns if connection is None else connection.end()

        def noticed() -> None:
            self._slots.pop(worker.key, None)
            self.workers.pop(worker.key, None)
            ordered = self._ordered.pop(worker.key, None) is not None
            slot = self.scheduler.world.slots.get(worker.key)
            if slot is not None and slot.instance is not None and not is_own:
                model = slot.instance.model
                self.truth.worker_died(model.directory, model.version)
            self.tell(e.SlotDied(worker.key, reason, worker.page_batch, ordered))
            self.supervisor.exited()

        delay_us = self.random.choice((10, 200, 50_000))
        self.agenda.at(when_ns + delay_us * MICROSECOND, noticed)


OPERATOR = 1


def _as_written(snapshot: dict[str, Any]) -> dict[str, Any]:
    """What a broker reads back from the state file."""
    found: dict[str, Any] = msgpack.unpackb(
        msgpack.packb(snapshot), strict_map_key=False, use_list=False
    )
    return found

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
from support.simulated_links import ClientLinks, Connections, WorkerLinks
from support.simulated_models import GPUS
from support.simulated_regions import Slots
from support.simulated_time import MICROSECOND, MILLISECOND, Agenda
from support.simulated_turns import Turns


class Truth(Protocol):
    """Who keeps count of what happens to the editions of models."""

    def worker_died(self, directory: str, version: int, *, is_known: bool) -> None: ...

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
        self.turns = Turns()
        self.saved: dict[str, Any] | None = None
        self.named = Slots(ledger, Random(random.random()))
        """Regions registered by name."""
        self.connections = Connections(self)
        self.clients = ClientLinks(self)
        self.workers = WorkerLinks(self)
        self.names: tuple[str, ...] | None = None
        self.replies: dict[int, Callable[[Any, Any], None]] = {}
        self._inbox: list[e.Event] = []
        self._turn_ns = NEVER_NS
        self._call = 0
        self._life = 0
        self._random_keys = Random(random.random())

    # --- being up and down ---------------------------------------------------------------

    def start(self) -> None:
        self._life += 1
        self.turns = Turns()
        life = self._life
        self.scheduler = Scheduler(
            incarnation=self._random_keys.getrandbits(60) + 1,
            server="simulated",
            software="simulated",
            first_number=life * 10_000_000,
            explicit=self.explicit,
            limits=self.limits,
            gpus=GPUS,
        )
        self.is_up = True
        saved = None if self.saved is None else _as_written(self.saved)
        self.ledger.tell(f"broker {life} starts, saved: {saved is not None}")
        actions = self.scheduler.start(self.names, saved, self.agenda.now_ns)
        self._perform(actions)
        for entry in (saved or {}).get("slots", ()):
            if entry["slot"] not in self.workers.alive:
                self.tell(e.SlotDied(entry["slot"], "it died while the broker was away", 0, False))
        for entry in (saved or {}).get("sessions", ()):
            if entry["session"] in self.clients.dead:
                self.tell(e.SessionEnded(entry["session"]))
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
        self.connections.cut_all()
        self.clients.clear()
        self.workers.clear()
        self.replies.clear()
        self.agenda.after(away_ns, self.start)

    def in_this_life(self, delay_ns: int, what: Callable[[], None]) -> None:
        """Later, unless the broker has died by then."""
        life = self._life
        self.agenda.after(delay_ns, lambda: what() if self._life == life else None)

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
        self.turns.check(self.scheduler, events, actions)
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
                    self.clients.send(
                        session, m.Answers(incarnation, tuple(answers), regions), frames
                    )
                case e.SendBatch(slot, batch, frames):
                    self.workers.send(slot, batch, frames)
                case e.TellSession(session, message):
                    self.clients.send(session, message, [])
                case e.TellSlot(slot, message, frames):
                    self.workers.send(slot, message, frames)
                case e.SendReply(session, call, error, result):
                    self._reply(session, call, error, result)
                case e.CloseSession(session, error):
                    raise AssertionError(f"session {session} is closed: {error}")
                case e.KillSlot(slot, reason):
                    self.workers.kill(slot, reason)
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
        self.connections.close_all()

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
            self.clients.send(session, m.Reply(call, wire), [])


OPERATOR = 1


def _as_written(snapshot: dict[str, Any]) -> dict[str, Any]:
    """What a broker reads back from the state file."""
    found: dict[str, Any] = msgpack.unpackb(
        msgpack.packb(snapshot), strict_map_key=False, use_list=False
    )
    return found

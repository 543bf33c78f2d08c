"""A client of a simulation: asks, cancels, loses its connection, asks again, and checks answers.

It behaves as the real one: HELLO on each connection, unanswered requests are sent again with a
higher attempt, memory is free only after the final answer or RELEASED.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_ledger import Violation, token_of
from support.simulated_regions import OwnRegions
from support.simulated_requests import Asked, ClientPlan, RequestMaker, infer_message
from support.simulated_time import MICROSECOND, MILLISECOND, Connection

if TYPE_CHECKING:
    from support.simulated_server import Server

HELD_CODES = (str(Code.TIMEOUT), str(Code.CANCELLED), str(Code.WORKER_DIED))


class SimulatedClient:
    """`key` is what the shell makes of its secret."""

    def __init__(self, server: Server, name: str, key: int, plan: ClientPlan, random: Random):
        self.server = server
        self.ledger = server.ledger
        self.agenda = server.agenda
        self.name = name
        self.key = key
        self.plan = plan
        self.random = random
        self.is_alive = True
        self.is_closed = False
        self.reconnects = 0
        self.connection: Connection | None = None
        self.is_open = False
        self.incarnation = 0
        self.asked: dict[int, Asked] = {}
        self.held: dict[int, Asked] = {}
        self.arenas: dict[int, m.Region] = {}
        self.leases: dict[tuple[int, int], tuple[int, int]] = {}
        """(arena, request id) to (token, offset)."""
        self.regions = OwnRegions(server.ledger, Random(random.random()), key)
        self.maker = RequestMaker(server.ledger, plan, self.regions, server.named, random)
        self.calls: dict[int, int] = {}
        """Region that is registered by each, 0 when it is forgotten."""
        self._next_id = 0
        self._next_call = 0
        self.left = plan.requests
        self.away_until_ns = 0
        for _ in range(2 if plan.region_share else 0):
            self.regions.make()
        for gpu in plan.gpus if plan.region_share else ():
            self.regions.make(gpu)
        self.agenda.after(random.randint(0, 5) * MILLISECOND, self.connect)
        self.agenda.after(random.randint(0, 30) * MILLISECOND, self._go_on)

    def __repr__(self) -> str:
        return f"client {self.name}"

    @property
    def is_quiet(self) -> bool:
        """Nothing is owed to it any more."""
        return not self.is_alive or (not self.left and not self.asked and not self.held)

    # --- the connection ------------------------------------------------------------------

    def connect(self) -> None:
        if not self.is_alive or self.is_closed or self.connection is not None:
            return
        if self.agenda.now_ns < self.away_until_ns:
            self.agenda.at(self.away_until_ns, self.connect)
            return
        self.connection = self.server.clients.connect(self)
        if self.connection is None:
            self.agenda.after(self.random.randint(2, 20) * MILLISECOND, self.connect)
            return
        hello = m.Hello(b"", "client", "simulated", 1, self.incarnation, tuple(self.leases))
        self._send(hello)

    def disconnected(self) -> None:
        self.connection = None
        self.is_open = False
        self.reconnects += 1
        self.agenda.after(self.random.randint(50, 3_000) * MICROSECOND, self.connect)

    def _send(self, message: m.Message, frames: list[bytes] | None = None) -> None:
        if self.connection is not None:
            self.connection.up.send((message, frames or []))

    # --- asking --------------------------------------------------------------------------

    def _go_on(self) -> None:
        if not self.is_alive or self.is_closed or self.left <= 0:
            return
        plan = self.plan
        if len(self.asked) < 200:
            count = min(self.left, self.random.randint(1, plan.burst))
            self.left -= count
            fresh = [self._make() for _ in range(count)]
            if self.is_open:
                self._ask(fresh)
        if plan.forget_share and self.random.random() < plan.forget_share:
            self._forget_region()
        pause_us = 1 + int(self.random.expovariate(1.0) * plan.pause_us)
        self.agenda.after(pause_us * MICROSECOND, self._go_on)

    def _make(self) -> Asked:
        self._next_id += 1
        asked = self.maker.make(self._next_id, self.name)
        self.asked[self._next_id] = asked
        self.ledger.tell(f"{self} makes id {self._next_id}", asked.record.token, asked.record)
        if self.random.random() < self.plan.cancel_share:
            delay_us = self.random.choice((10, 500, 3_000, 20_000))
            ident = self._next_id
            self.agenda.after(delay_us * MICROSECOND, lambda: self._cancel(ident))
        return asked

    def _ask(self, some: list[Asked]) -> None:
        message, frames = infer_message(some)
        for asked in some:
            if asked.request.attempt > 1:
                asked.record.resends += 1
                why = f"attempt {asked.request.attempt} sent"
                self.ledger.excuse(asked.record.token, why)
        self._send(message, frames)

    def _cancel(self, ident: int) -> None:
        asked = self.asked.get(ident)
        if asked is None or asked.ended or not self.is_alive:
            return
        asked.record.cancel_asked = True
        if self.is_open and asked.is_sent:
            self._send(m.Cancel((ident,)))

    # --- regions -------------------------------------------------------------------------

    def _register(self, region: m.Region) -> None:
        self._next_call += 1
        self.calls[self._next_call] = region.id
        self._send(m.RegisterRegion(self._next_call, region))

    def _forget_region(self) -> None:
        """Not nice while requests use it: they may fail, by name, and nothing else happens."""
        if not self.is_open or not self.regions.open:
            return
        ident = self.random.choice(sorted(self.regions.open))
        self.regions.close(ident)
        for asked in (*self.asked.values(), *self.held.values()):
            if any(place[0] == ident for place in asked.own):
                asked.record.uses_forgotten_region = True
        self._next_call += 1
        self.calls[self._next_call] = 0
        self._send(m.ForgetRegion(self._next_call, ident))
        self._register(self.regions.make(self.regions.gpus.get(ident)))

    def named_region_ends(self, ident: int) -> None:
        """The operator unregisters it: what uses it may fail."""
        for asked in (*self.asked.values(), *self.held.values()):
            if any(place[0] == ident for place in asked.named):
                asked.record.uses_forgotten_region = True

    # --- what comes back -----------------------------------------------------------------

    def received(self, message: Any, frames: list[bytes]) -> None:
        if not self.is_alive:
            return
        match message:
            case m.Answers(incarnation, answers, regions):
                self._check_incarnation(incarnation)
                self.arenas.update((region.id, region) for region in regions)
                for answer in answers:
                    self._answer(answer, frames)
            case m.Released(incarnation, ids):
                self._check_incarnation(incarnation)
                for ident in ids:
                    self._released(ident)
            case m.Welcome():
                self._welcome(message)
            case m.Reply(call, error):
                region = self.calls.pop(call, 0)
                if error is not None:
                    raise Violation(f"{self}: call {call} for region {region} failed: {error}")
                self.regions.registered.add(region)
            case _:
                raise Violation(f"{self} got {message}")

    def _check_incarnation(self, incarnation: int) -> None:
        if incarnation != self.incarnation or not self.is_open:
            raise Violation(f"{self} hears {incarnation:x}, its broker is {self.incarnation:x}")

    def _welcome(self, welcome: m.Welcome) -> None:
        same = welcome.resumed and welcome.incarnation == self.incarnation
        self.incarnation = welcome.incarnation
        self.is_open = True
        self.calls.clear()
        if not same:
            self.regions.registered.clear()
        for ident in sorted(self.regions.open):
            if ident not in self.regions.registered:
                self._register(self.regions.describe(ident))
        for ident, asked in self.held.items():
            asked.record.cancel_asked = True
            self.asked[ident] = asked
        self.held.clear()
        again = [asked for _, asked in sorted(self.asked.items())]
        for start in range(0, len(again), 50):
            self._ask(again[start : start + 50])
        cancels = [one.request.id for one in again if one.record.cancel_asked]
        if cancels:
            self._send(m.Cancel(tuple(cancels)))

    def _answer(self, answer: m.InferAnswer, frames: list[bytes]) -> None:
        asked = self.asked.get(answer.id)
        if asked is None:
            self._duplicate(answer)
            return
        record = asked.record
        self.ledger.tell(f"{self} gets the answer of {answer.id}", record.token, answer)
        record.answers += 1
        if record.answers > 1 + record.resends:
            raise Violation(f"{record.answers} answers", record.token)
        if answer.error is None:
            self._check_outputs(asked, answer, frames)
        else:
            record.error = answer.error
            if not asked.ended:
                self.server.judge_error(self, record, answer.error)
        del self.asked[answer.id]
        if answer.error is not None and answer.error[0] in HELD_CODES:
            asked.ended = True
            self.held[answer.id] = asked
        else:
            self._free(asked)

    def _duplicate(self, answer: m.InferAnswer) -> None:
        if not self.reconnects:
            raise Violation(f"{self} got an answer for {answer.id}, which it did not wait for")
        for tensor in answer.outputs:
            lease = (tensor.region, answer.id)
            if tensor.place == m.Place.LEASE and lease not in self.leases:
                self._send(m.Release((lease,)))

    def _check_outputs(self, asked: Asked, answer: m.InferAnswer, frames: list[bytes]) -> None:
        token = asked.record.token
        (tensor,) = answer.outputs
        if tensor.place == m.Place.INLINE:
            data = frames[tensor.region][tensor.offset : tensor.offset + tensor.size]
            if token_of(data, asked.size) != token:
                raise Violation(f"{self} got another result than that of {answer.id}", token)
        elif tensor.place == m.Place.REGION:
            output = asked.request.outputs[0]
            key = self.regions.keys[output.region]
            self.ledger.read(key, output.offset, token, repr(self))
        else:
            arena = self.arenas[tensor.region]
            self.ledger.read(arena.key, tensor.offset, token, repr(self))
            lease = (tensor.region, answer.id)
            self.leases[lease] = (token, tensor.offset)
            delay_us = self.random.choice((0, 200, 200, 5_000, 6_000_000))
            self.agenda.after(delay_us * MICROSECOND, lambda: self._release(lease))

    def _release(self, lease: tuple[int, int]) -> None:
        found = self.leases.pop(lease, None)
        if found is None or not self.is_alive or self.is_closed:
            return
        token, offset = found
        self.ledger.read(self.arenas[lease[0]].key, offset, token, repr(self))
        if self.is_open:
            self._send(m.Release((lease,)))
        else:
            self.leases[lease] = found
            self.agenda.after(MILLISECOND, lambda: self._release(lease))

    def _released(self, ident: int) -> None:
        asked = self.held.pop(ident, None)
        if asked is None:
            waiting = self.asked.get(ident)
            if waiting is None or not waiting.ended:
                if not self.reconnects:
                    raise Violation(f"{self} got RELEASED for {ident}, which it does not hold")
                return
            asked = self.asked.pop(ident)
        self.ledger.tell(f"{self} gets RELEASED of {ident}", asked.record.token)
        self._free(asked)

    def _free(self, asked: Asked) -> None:
        for place in asked.own:
            self.regions.give_back(place)
        for place in asked.named:
            self.server.named.give_back(place)
        asked.own, asked.named = [], []

    # --- the end -------------------------------------------------------------------------

    def die(self) -> None:
        """SIGKILL: the kernel tells the broker, and takes its memory after the last user."""
        self.is_alive = False
        self.regions.end()

    def close(self) -> None:
        """Say BYE; what is unanswered is given up."""
        self.is_closed = True
        self.left = 0
        self.regions.end()
        self.asked.clear()
        self.held.clear()
        self.leases.clear()
        if self.connection is not None and self.is_open:
            self._send(m.Bye())

    def stay_away(self, for_ns: int) -> None:
        """Lose the connection and do not come back for some time."""
        self.away_until_ns = self.agenda.now_ns + for_ns
        if self.connection is not None:
            self.server.clients.cut(self)

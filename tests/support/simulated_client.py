"""A client of a simulation: asks, cancels, loses its connection, asks again, and checks answers.

It behaves as the real one: HELLO on each connection, unanswered requests are sent again with a
higher attempt, memory is free only after the final answer or RELEASED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_ledger import Record, Violation, content, token_of
from support.simulated_models import ModelPlan
from support.simulated_time import MICROSECOND, MILLISECOND, SECOND, Connection

if TYPE_CHECKING:
    from support.simulated_server import Server

SMALL_BYTES = 16_384
SLOT_BYTES = 65_536
HELD_CODES = (str(Code.TIMEOUT), str(Code.CANCELLED))


@dataclass(slots=True)
class ClientPlan:
    """How one client behaves; the fields ending in `_share` are probabilities."""

    models: list[ModelPlan]
    requests: int
    burst: int
    """Requests sent together at most."""
    pause_us: int
    """Mean pause between bursts."""
    cancel_share: float = 0.0
    timeout_share: float = 0.0
    poison_share: float = 0.0
    raise_share: float = 0.0
    region_share: float = 0.0
    wrong_share: float = 0.0
    forget_share: float = 0.0
    rows_many: bool = True


@dataclass(slots=True)
class Asked:
    """One request of this client until its memory is free again."""

    record: Record
    request: m.InferRequest
    size: int
    slots: list[tuple[int, int]] = field(default_factory=list)
    """(region id, offset) of the ranges it was given."""
    is_sent: bool = False
    ended: bool = False
    """Its final error came: only RELEASED is waited for."""


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
        self.regions: dict[int, m.Region] = {}
        self.registered: set[int] = set()
        self.free: list[tuple[int, int]] = []
        self.calls: dict[int, int] = {}
        """Region that is registered by each, 0 when it is forgotten."""
        self._next_id = 0
        self._next_call = 0
        self.left = plan.requests
        self.away_until_ns = 0
        for number in range(2 if plan.region_share else 0):
            self._make_region(number + 1)
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
        self.connection = self.server.connect_client(self)
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
        plan, random = self.plan, self.random
        model = random.choice(plan.models)
        self._next_id += 1
        ident = self._next_id
        record = self.ledger.new(model.name, f"{self.name}:{ident}")
        rows = 1
        if model.rows_max and plan.rows_many:
            rows = random.choice((1, 1, 1, 2, model.rows_max))
        width = random.choice(model.widths)
        if rows * width > SLOT_BYTES:
            rows, width = 1, min(model.widths)
        size = rows * width
        shape = (rows, width) if model.rows_max else (width,)
        if random.random() < plan.wrong_share:
            shape = (*shape, 7)
            record.is_wrong = True
        record.is_poison = random.random() < plan.poison_share
        record.raises = random.random() < plan.raise_share
        if random.random() < plan.timeout_share:
            record.timeout_us = random.choice((300, 2_000, 10_000, 200_000))
        asked = Asked(record, _EMPTY, size)
        tensor, outputs = self._place(asked, shape, size)
        asked.request = m.InferRequest(
            ident, 0, model.name, m.ANY_VERSION, str(record.token), (tensor,), outputs,
            priority=random.randint(0, 4) if model.priorities else 0,
            timeout_us=record.timeout_us,
        )  # fmt: skip
        self.asked[ident] = asked
        self.ledger.tell(f"{self} makes id {ident}", record.token, record)
        if random.random() < plan.cancel_share:
            delay_us = random.choice((10, 500, 3_000, 20_000))
            self.agenda.after(delay_us * MICROSECOND, lambda: self._cancel(ident))
        return asked

    def _place(
        self, asked: Asked, shape: tuple[int, ...], size: int
    ) -> tuple[m.Tensor, tuple[m.OutputRequest, ...]]:
        random = self.random
        outputs: tuple[m.OutputRequest, ...] = ()
        tensor = m.Tensor("X", "UINT8", shape, int(m.Place.INLINE), 0, 0, size)
        wants = random.random() < self.plan.region_share
        if wants and self.free:
            region, offset = self._take(asked)
            tensor = tensor._replace(place=int(m.Place.REGION), region=region, offset=offset)
        if wants and self.free and random.random() < 0.7:
            region, offset = self._take(asked)
            place = int(m.Place.REGION)
            outputs = (m.OutputRequest("Y", place, region, offset, SLOT_BYTES),)
        elif random.random() < 0.3:
            outputs = (m.OutputRequest("Y"),)
        return tensor, outputs

    def _ask(self, some: list[Asked]) -> None:
        """One INFER message: small inline inputs share frame 0."""
        small: list[bytes] = []
        small_bytes = 0
        frames: list[bytes] = []
        requests = []
        for asked in some:
            request = asked.request
            tensor = request.inputs[0]
            if tensor.place == m.Place.INLINE:
                data = content(asked.record.token, asked.size)
                if asked.size <= SMALL_BYTES:
                    tensor = tensor._replace(region=0, offset=small_bytes)
                    small.append(data)
                    small_bytes += asked.size
                else:
                    frames.append(data)
                    tensor = tensor._replace(region=len(frames), offset=0)
            request = request._replace(attempt=request.attempt + 1, inputs=(tensor,))
            asked.request = request
            asked.is_sent = True
            if request.attempt > 1:
                asked.record.resends += 1
                self.ledger.excuse(asked.record.token, f"attempt {request.attempt} sent")
            requests.append(request)
        self._send(m.Infer(tuple(requests)), [b"".join(small), *frames])

    def _cancel(self, ident: int) -> None:
        asked = self.asked.get(ident)
        if asked is None or asked.ended or not self.is_alive:
            return
        asked.record.cancel_asked = True
        if self.is_open and asked.is_sent:
            self._send(m.Cancel((ident,)))

    # --- regions -------------------------------------------------------------------------

    def _make_region(self, ident: int) -> None:
        key = f"/naiad.sim.client.{self.key}.{ident}"
        self.regions[ident] = m.Region(ident, key, 1, self.key * 100 + ident, 8 * SLOT_BYTES)
        self.free += [(ident, slot * SLOT_BYTES) for slot in range(8)]

    def _take(self, asked: Asked) -> tuple[int, int]:
        slot = self.free.pop(self.random.randrange(len(self.free)))
        asked.slots.append(slot)
        self.ledger.lend(self.regions[slot[0]].key, slot[1], asked.record.token)
        return slot

    def _register(self, region: m.Region) -> None:
        self._next_call += 1
        self.calls[self._next_call] = region.id
        self._send(m.RegisterRegion(self._next_call, region))

    def _forget_region(self) -> None:
        """Not nice while requests use it: they may fail, by name, and nothing else happens."""
        if not self.is_open or not self.regions:
            return
        ident = self.random.choice(list(self.regions))
        self.free = [slot for slot in self.free if slot[0] != ident]
        for asked in (*self.asked.values(), *self.held.values()):
            if any(slot[0] == ident for slot in asked.slots):
                asked.record.uses_forgotten_region = True
        del self.regions[ident]
        self._next_call += 1
        self.calls[self._next_call] = 0
        self._send(m.ForgetRegion(self._next_call, ident))
        fresh = self._next_call + 100
        self._make_region(fresh)
        self._register(self.regions[fresh])

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
                self.registered.add(region)
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
        for region in self.regions.values():
            if not same or region.id not in self.registered:
                self._register(region)
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
            self.ledger.read(f"/naiad.sim.client.{self.key}.{output.region}", output.offset,
                             token, repr(self))  # fmt: skip
        else:
            arena = self.arenas[tensor.region]
            self.ledger.read(arena.key, tensor.offset, token, repr(self))
            lease = (tensor.region, answer.id)
            self.leases[lease] = (token, tensor.offset)
            delay_us = self.random.choice((0, 200, 5_000))
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
        for region, offset in asked.slots:
            self.ledger.take_back(f"/naiad.sim.client.{self.key}.{region}", offset)
            if region in self.regions:
                self.free.append((region, offset))
        asked.slots = []

    # --- the end -------------------------------------------------------------------------

    def die(self) -> None:
        """SIGKILL: the kernel tells the broker, and takes its memory after the last user."""
        self.is_alive = False
        for number in range(1, 3):
            self.ledger.end_segment(f"/naiad.sim.client.{self.key}.{number}")
        for region in self.regions.values():
            self.ledger.end_segment(region.key)

    def close(self) -> None:
        """Say BYE; what is unanswered is given up."""
        self.is_closed = True
        self.left = 0
        for asked in (*self.asked.values(), *self.held.values()):
            for region, _ in asked.slots:
                self.ledger.end_segment(f"/naiad.sim.client.{self.key}.{region}")
        self.asked.clear()
        self.held.clear()
        self.leases.clear()
        if self.connection is not None and self.is_open:
            self._send(m.Bye())

    def stay_away(self, for_ns: int) -> None:
        """Lose the connection and do not come back for some time."""
        self.away_until_ns = self.agenda.now_ns + for_ns
        if self.connection is not None:
            self.server.break_client(self)


_EMPTY = m.InferRequest(0, 0, "", m.ANY_VERSION, "", (), ())
ABSENCE_NS = 2 * SECOND

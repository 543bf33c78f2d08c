"""Control and region calls until their replies, and the regions a session has registered. Pure.

Owns call ids, deadlines, and what is repeated to a broker after a reconnect: everything that may be
asked twice, and the session's regions to a broker that does not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from naiad.client.packing import Request
from naiad.client.requests import Buffer
from naiad.protocol import messages as m
from naiad.protocol.codec import encode
from naiad.protocol.errors import (
    Code,
    NaiadError,
    RequestError,
    Unavailable,
    WireError,
    error_from_wire,
)

CALLS_MAX: Final = 1024
"""Unanswered calls of one session."""
BROKER_DEATHS_MAX: Final = 3
"""A call or request that was in flight at so many deaths of brokers is not sent to the next one: it
may be what they die of. Fewer than the supervisor's patience with brokers, which ends the server.
"""
BROKER_LATE_NS: Final = 30_000_000_000
"""A broker that had it so long did not die of it: some calls wait for hours. Longer than what is
sent again waits, in a restarted broker, for the worker that may have it."""
_NOT_REPEATED: Final = ("region_register",)

Message = list[Any]
"""[header, payload frame, ...], as it goes to the socket."""

Completion = tuple[Any, NaiadError | None, m.InferAnswer | None, Sequence[Any], Request | None]
"""(token, error, answer, payload frames, request): what became of a request or of a call.

A call has neither answer nor request. The request is given where shared memory is concerned: its
answer has outputs that are not inline, or it failed and had `memory`.
"""

Ask = Callable[["Calls", Any, int], int]
"""Queues a call: (calls, token, deadline_ns) to the call's id."""


class Before(Enum):
    """What became of the broker to which a session was connected before."""

    LIVES = 0
    DIED = 1
    DIED_LATE = 2
    """After more than BROKER_LATE_NS with this session."""

    def deaths(self, earlier: int) -> int:
        """How many deaths in a row something was in flight at, that was with that broker."""
        if self is Before.LIVES:
            return earlier
        return 1 if self is Before.DIED_LATE else earlier + 1


class Call:
    """One call; `sent` once it was given to a connection."""

    __slots__ = (
        "deadline_ns", "deaths", "id", "message", "operation", "region_id", "sent", "token",
    )  # fmt: skip

    def __init__(
        self, ident: int, operation: str, message: Message, token: Any, deadline_ns: int
    ) -> None:
        self.id = ident
        self.operation = operation
        self.message = message
        self.token = token
        self.deadline_ns = deadline_ns
        self.region_id = 0
        self.sent = False
        self.deaths = 0
        """Of brokers, at which it was in flight."""


class Calls:
    """The calls of one session. `deadline_ns` 0 means none; a `token` None: nobody waits."""

    def __init__(self) -> None:
        self.pending: dict[int, Call] = {}
        """Unanswered calls by id; to be read only."""
        self._last_id = 0
        self._registrations: list[Call] = []
        """Due, and to be sent before any request: it may name the region."""
        self._due: list[Call] = []
        """Due after the requests that were submitted before."""
        self._regions: dict[int, tuple[m.Region, str]] = {}
        """And the UUIDs of their GPUs."""

    def control(
        self,
        operation: str,
        arguments: m.Parameters,
        token: Any,
        deadline_ns: int,
        payload: Buffer | None = None,
    ) -> int:
        """Queue a control call; its completion has the result as JSON in payload frame 0.

        Raises Unavailable (budget_exceeded) when CALLS_MAX are unanswered.
        """
        ident = self._next_id()
        message: Message = [encode(m.Control(ident, operation, arguments))]
        if payload is not None:
            message.append(payload)
        return self._queue(Call(ident, operation, message, token, deadline_ns))

    def register_region(self, token: Any, deadline_ns: int, region: m.Region, gpu: str = "") -> int:
        """Offer memory; its id must be new in this session. Repeated to every new broker."""
        assert region.id not in self._regions
        self._regions[region.id] = region, gpu
        return self._queue(self._registration(region, gpu, token, deadline_ns))

    def forget_region(self, token: Any, deadline_ns: int, region_id: int) -> int:
        """Take a segment back; from its reply on no request may name it."""
        self._regions.pop(region_id, None)
        ident = self._next_id()
        message: Message = [encode(m.ForgetRegion(ident, region_id))]
        return self._queue(Call(ident, "forget_region", message, token, deadline_ns))

    def drop(self, ident: int) -> None:
        """Nobody waits for this call any more."""
        self.pending.pop(ident, None)

    @property
    def has_messages(self) -> bool:
        return bool(self._due or self._registrations)

    def registrations(self) -> list[Message]:
        """What to send now, before requests."""
        return self._sent(self._registrations)

    def messages(self) -> list[Message]:
        """What to send now, after requests."""
        return self._sent(self._due)

    def _sent(self, due: list[Call]) -> list[Message]:
        out = []
        for call in due:
            if call.id in self.pending:
                call.sent = True
                out.append(call.message)
        due.clear()
        return out

    def replied(self, reply: m.Reply, frames: Sequence[Any], out: list[Completion]) -> bool:
        """False: no such call is unanswered."""
        call = self.pending.get(reply.call)
        if call is None:
            return False
        error = None if reply.error is None else error_from_wire(reply.error)
        if error is not None:
            self._regions.pop(call.region_id, None)
        if call.token is not None:
            out.append((call.token, error, None, frames, None))
        del self.pending[reply.call]
        return True

    def repeat(self, same_broker: bool, before: Before, out: list[Completion]) -> None:
        """There is a new connection; `same_broker`: it knows this session's regions."""
        due: list[Call] = []
        for call in list(self.pending.values()):
            if call.sent:
                call.deaths = before.deaths(call.deaths)
            if call.deaths >= BROKER_DEATHS_MAX:
                self._regions.pop(call.region_id, None)
                self._fail(call, deadly(f"the call {call.operation}"), out)
            elif call.sent and call.operation in _NOT_REPEATED:
                fault = Unavailable(
                    f"the server went away during {call.operation}; whether it was done is unknown",
                    code=Code.CONNECTION_LOST,
                )
                self._fail(call, fault, out)
            else:
                call.sent = False
                due.append(call)
        if not same_broker:
            offered = {call.region_id for call in due}
            again = [
                self._registration(region, gpu, None, 0)
                for region, gpu in self._regions.values()
                if region.id not in offered
            ]
            self.pending.update({call.id: call for call in again})
            due += again
        self._registrations = [call for call in due if call.region_id]
        self._due = [call for call in due if not call.region_id]

    def deadline_ns(self) -> int:
        """When `expire` has something to do; 0: never."""
        soonest = 0
        for call in self.pending.values():
            if call.deadline_ns and (not soonest or call.deadline_ns < soonest):
                soonest = call.deadline_ns
        return soonest

    def expire(self, now_ns: int, out: list[Completion]) -> None:
        """Fail the calls past their deadline."""
        for call in list(self.pending.values()):
            if call.deadline_ns and call.deadline_ns <= now_ns:
                fault = Unavailable(
                    f"no reply to {call.operation} in time; the server is busy or unreachable",
                    code=Code.TIMEOUT,
                )
                self._fail(call, fault, out)

    def fail_all(self, wire: WireError, out: list[Completion]) -> None:
        for call in list(self.pending.values()):
            self._fail(call, error_from_wire(wire), out)
        self._registrations.clear()
        self._due.clear()

    def _fail(self, call: Call, fault: NaiadError, out: list[Completion]) -> None:
        if call.token is not None:
            out.append((call.token, fault, None, (), None))
        del self.pending[call.id]

    def _next_id(self) -> int:
        if len(self.pending) >= CALLS_MAX:
            raise Unavailable(
                f"{len(self.pending)} calls are unanswered, at most {CALLS_MAX}; wait for some",
                code=Code.BUDGET_EXCEEDED,
            )
        self._last_id += 1
        return self._last_id

    def _queue(self, call: Call) -> int:
        self.pending[call.id] = call
        (self._registrations if call.region_id else self._due).append(call)
        return call.id

    def _registration(self, region: m.Region, gpu: str, token: Any, deadline_ns: int) -> Call:
        ident = self._next_id()
        message: Message = [encode(m.RegisterRegion(ident, region, gpu))]
        call = Call(ident, "register_region", message, token, deadline_ns)
        call.region_id = region.id
        return call


def deadly(what: str) -> NaiadError:
    """The error for what was in flight at BROKER_DEATHS_MAX deaths of brokers."""
    return RequestError(
        f"the broker died {BROKER_DEATHS_MAX} times while it had {what}; it is not sent again, as"
        " it may be the reason: see the server's log",
        code=Code.POISON_REQUEST,
    )

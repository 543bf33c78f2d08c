"""The client's side of the conversation with a broker, without a socket, a clock or NumPy. Pure.

Owns the phases of a connection, what must be sent now, and what an incoming message means; what is
unanswered is in `Outstanding` and `Calls`. Both clients (and gateways) wrap I/O around it:
`connection_made`, `messages`, `feed`, `disconnected`, `expire`. Never blocks, never looks into a
tensor.

At most one answer per request id is delivered. After a reconnect every unanswered request is sent
again with the next attempt number; the broker joins it to the running copy or runs it. What was in
flight at BROKER_DEATHS_MAX deaths of brokers in a row fails by that name instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from naiad.client.calls import BROKER_LATE_NS, Before, Calls, Completion, Message
from naiad.client.leases import Leases
from naiad.client.outstanding import Outstanding
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import (
    Code,
    NaiadError,
    ProtocolError,
    Unavailable,
    error_from_wire,
)


class Phase(IntEnum):
    """Of the conversation with the broker; the legal moves are below."""

    OFFLINE = 0
    GREETING = 1
    """HELLO is due or under way; nothing else may be sent."""
    OPEN = 2
    ENDED = 3
    """Refused for good, or closed; `fault` says why."""


_MOVES: Final[dict[Phase, tuple[Phase, ...]]] = {
    Phase.OFFLINE: (Phase.GREETING, Phase.ENDED),
    Phase.GREETING: (Phase.OPEN, Phase.OFFLINE, Phase.ENDED),
    Phase.OPEN: (Phase.OFFLINE, Phase.ENDED),
    Phase.ENDED: (),
}


class Session:
    """One client's conversation, kept over reconnects and over restarts of the broker."""

    def __init__(self, secret: bytes, *, role: str, software: str, pid: int) -> None:
        self.secret = secret
        self.phase = Phase.OFFLINE
        self.fault: NaiadError | None = None
        self.last_refusal: NaiadError | None = None
        """Why the newest connection was given up, for whoever waits in vain for a broker."""
        self.incarnation = 0
        self.server = ""
        self.reset_wanted = False
        """The connection is useless (it broke the rules, or belongs to another incarnation)."""
        self.leases = Leases()
        self.arenas: list[m.Region] = []
        """Worker arenas that came to be known; who maps them takes them from here."""
        self.calls = Calls()
        """Control calls, and the regions that this session has registered."""
        self.requests = Outstanding(self.leases)
        # Asked at every request and turn: without a step in between.
        self.submit = self.requests.submit
        self.cancel = self.requests.cancel
        self.has_room = self.requests.has_room
        self._unanswered = self.requests.unanswered
        self._role = role
        self._software = software
        self._pid = pid
        self._hello_due = False
        self._known_since_ns = 0
        """When this incarnation of the broker was first met."""

    def __repr__(self) -> str:
        return (
            f"<session {self.phase.name} [{len(self._unanswered)} unanswered,"
            f" {len(self.requests.waiting)} unsent, {len(self.requests.held)} held,"
            f" {len(self.calls.pending)} calls]>"
        )

    @property
    def has_deadlines(self) -> bool:
        """Whether `expire` may have something to do some day, while the phase is OPEN."""
        return bool(self.calls.pending or self.requests.timed)

    @property
    def unanswered(self) -> int:
        """Requests and calls that somebody still waits for, or that count against the budget."""
        return len(self._unanswered) + len(self.calls.pending)

    # --- the connection ----------------------------------------------------------------------

    def _move(self, phase: Phase) -> None:
        assert phase in _MOVES[self.phase], f"{self.phase.name} to {phase.name}: {self!r}"
        self.phase = phase

    def connection_made(self) -> None:
        """There is a fresh connection: HELLO is the next and only thing to send."""
        self._move(Phase.GREETING)
        self._hello_due = True
        self.reset_wanted = False

    def disconnected(self) -> None:
        """The connection is gone; what was under way is unknown until the next WELCOME."""
        if self.phase in (Phase.GREETING, Phase.OPEN):
            self._move(Phase.OFFLINE)
        self._hello_due = False
        self.reset_wanted = False

    @property
    def has_messages(self) -> bool:
        """Whether `messages` would return something."""
        if self.phase is Phase.OPEN:
            requests = self.requests
            due = requests.waiting or requests.cancels or self.leases.due or self.calls.has_messages
            return bool(due)
        return self._hello_due

    def messages(self) -> list[Message]:
        """Everything to send now, in order, as few messages as fit the limits."""
        if self.phase is not Phase.OPEN:
            if not self._hello_due:
                return []
            self._hello_due = False
            return [[encode(self._hello(tuple(self.leases.held)))]]
        out: list[Message] = []
        calls = self.calls
        if calls.has_messages:
            out += calls.registrations()
        requests = self.requests
        if requests.waiting:
            out += requests.infers()
        if requests.cancels:
            out += requests.cancellations()
        if self.leases.due:
            out += self.leases.messages()
        if calls.has_messages:
            out += calls.messages()
        return out

    def _hello(self, leases: tuple[tuple[int, int], ...]) -> m.Hello:
        return m.Hello(self.secret, self._role, self._software, self._pid, self.incarnation, leases)

    def close(self) -> list[Message]:
        """End the session: everything unanswered fails (see `fail_all`).

        Returns the BYE, after a HELLO where a broker that knew this session has to hear of it on a
        connection of its own: it would keep what the session holds while this process lives.
        """
        bye: list[Message] = []
        if self.phase is Phase.OPEN:
            bye = [[encode(m.Bye())]]
        elif self.phase is not Phase.ENDED and self.incarnation:
            bye = [[encode(self._hello(()))], [encode(m.Bye())]]
        self.end(Unavailable("the client is closed", code=Code.CONNECTION_LOST, retryable=False))
        return bye

    def end(self, fault: NaiadError) -> None:
        if self.phase is not Phase.ENDED:
            self._move(Phase.ENDED)
            self.fault = fault

    # --- what comes in -----------------------------------------------------------------------

    def feed(
        self,
        header: bytes,
        frames: Sequence[Any],
        now_ns: int = 0,
        out: list[Completion] | None = None,
    ) -> list[Completion]:
        """Handle one message; `frames` are payload frames, of which only len() is asked.

        `now_ns` matters at a WELCOME: how long brokers live, what is left of timeouts. Completions
        are appended to `out` one by one, each before it is forgotten here: after an interruption
        nothing is lost, at worst it comes twice. A message that breaks the rules sets
        `reset_wanted`; one of another wire version ends the session.
        """
        if out is None:
            out = []
        try:
            message = decode(header, [len(frame) for frame in frames])
        except ProtocolError as fault:
            self._broken(fault, out)
            return out
        kind = type(message)
        if isinstance(message, m.Answers):
            incarnation, answers, regions = message
            if incarnation != self.incarnation or self.phase is not Phase.OPEN:
                self.reset_wanted = True
                return out
            if regions:
                self.arenas += regions
            self.requests.answered(answers, frames, out)
        elif kind is m.Reply:
            if not self.calls.replied(message, frames, out):  # type: ignore[arg-type]
                self.requests.duplicate_answers += 1
        elif kind is m.Released:
            self._released(message)  # type: ignore[arg-type]
        elif kind is m.Welcome:
            self._welcome(message, now_ns, out)  # type: ignore[arg-type]
        elif kind is m.Refused:
            self._refused(message, out)  # type: ignore[arg-type]
        else:
            self._broken(ProtocolError(f"a broker does not send {kind.__name__}"), out)
        return out

    def _released(self, message: m.Released) -> None:
        if message.incarnation != self.incarnation:
            self.reset_wanted = True
            return
        self.requests.released(message.ids)

    def _welcome(self, message: m.Welcome, now_ns: int, out: list[Completion]) -> None:
        if self.phase is not Phase.GREETING:
            self._broken(ProtocolError("WELCOME came without HELLO"), out)
            return
        self._move(Phase.OPEN)
        before = self._before(message.incarnation, now_ns)
        same_broker = message.resumed and before is Before.LIVES
        self.server = message.server
        requests = self.requests
        requests.count_max = max(1, message.requests_max)
        requests.bytes_max = message.bytes_max
        requests.inline_bytes_max = min(message.inline_bytes_max, m.INLINE_BYTES_MAX)
        self.calls.repeat(same_broker, before, out)
        requests.resend(same_broker, before, now_ns, out)
        if before is not Before.LIVES:
            self._known_since_ns = now_ns
        # Last: interrupted before, the next WELCOME must not be taken for one of the same broker.
        self.incarnation = message.incarnation

    def _before(self, incarnation: int, now_ns: int) -> Before:
        if incarnation == self.incarnation:
            return Before.LIVES
        is_late = now_ns - self._known_since_ns > BROKER_LATE_NS
        return Before.DIED_LATE if is_late else Before.DIED

    def _refused(self, message: m.Refused, out: list[Completion]) -> None:
        fault = error_from_wire((message.code, message.message, False))
        if isinstance(fault, Unavailable):
            # Draining, or this session's budget was exceeded: another connection may do better.
            self.reset_wanted = True
            self.last_refusal = fault
            return
        self.end(fault)
        out.extend(self.fail_all(fault))

    def _broken(self, fault: ProtocolError, out: list[Completion]) -> None:
        if fault.code is Code.VERSION_MISMATCH:
            self.end(fault)
            out.extend(self.fail_all(fault))
            return
        self.last_refusal = fault
        self.reset_wanted = True

    # --- time and failure --------------------------------------------------------------------

    def deadline_ns(self) -> int:
        """When `expire` has something to do; 0: never."""
        soonest = self.calls.deadline_ns()
        deadline_ns = self.requests.deadline_ns(self.phase is Phase.OPEN)
        if deadline_ns and (not soonest or deadline_ns < soonest):
            soonest = deadline_ns
        return soonest

    def expire(self, now_ns: int) -> list[Completion]:
        """Calls past their deadline, and requests that no broker answered in time."""
        out: list[Completion] = []
        self.calls.expire(now_ns, out)
        if self.requests.timed:
            self.requests.expire(now_ns, out, self.phase is Phase.OPEN)
        return out

    def fail_all(self, fault: NaiadError) -> list[Completion]:
        """Give up on everything unanswered, with this error. The session itself goes on."""
        out: list[Completion] = []
        wire = fault.wire()
        self.requests.fail_all(wire, out)
        self.calls.fail_all(wire, out)
        return out

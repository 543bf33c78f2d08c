"""The client's side of the conversation with a broker, without a socket, a clock or NumPy. Pure.

Owns which requests and calls are unanswered, what must be sent now, and what an incoming message
means. Both clients (and gateways) wrap I/O around it: `connection_made`, `messages`, `feed`,
`disconnected`, `expire`. Never blocks, never looks into a tensor.

At most one answer per request id is delivered. After a reconnect every unanswered request is sent
again with the next attempt number; the broker joins it to the running copy or runs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from naiad.client.calls import Calls, Completion, Message
from naiad.client.leases import Leases
from naiad.client.packing import Request, infer_message
from naiad.client.requests import LEASE, Prepared, too_large
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import (
    Code,
    NaiadError,
    ProtocolError,
    Unavailable,
    WireError,
    error_from_wire,
)

REQUESTS_MAX: Final = 1024
"""Unanswered requests until a WELCOME says how many the broker takes."""
BYTES_MAX: Final = 64 * 1024 * 1024
PRUNE_MIN: Final = 256
IDS_PER_MESSAGE_MAX: Final = 2048
"""Keeps CANCEL far below the limits of a header and of an array."""

_NS_PER_US: Final = 1000
_HELD: Final = (str(Code.TIMEOUT), str(Code.CANCELLED))
"""After an answer with these codes a worker may still use the request's memory, until RELEASED."""


class Phase(IntEnum):
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
        self.server_software = ""
        self.requests_max = REQUESTS_MAX
        self.bytes_max = BYTES_MAX
        self.inline_bytes_max = m.INLINE_BYTES_MAX
        self.reset_wanted = False
        """The connection is useless (it broke the rules, or belongs to another incarnation)."""
        self.bytes_in_flight = 0
        self.duplicate_answers = 0
        self.resent_requests = 0
        self.leases = Leases()
        self.arenas: list[m.Region] = []
        """Worker arenas that came to be known; who maps them takes them from here."""
        self.calls = Calls()
        """Control calls, and the regions that this session has registered."""
        self._role = role
        self._software = software
        self._pid = pid
        self._hello_due = False
        self._last_id = 0
        self._requests: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._ended_waiting = 0
        """At most so many of them ended before they were sent."""
        self._held: dict[int, Request] = {}
        self._cancels: list[int] = []

    def __repr__(self) -> str:
        return (
            f"<session {self.phase.name} [{len(self._requests)} unanswered,"
            f" {len(self._waiting)} unsent, {len(self._held)} held,"
            f" {len(self.calls.pending)} calls]>"
        )

    # --- requests ----------------------------------------------------------------------------

    @property
    def unanswered(self) -> int:
        """Requests and calls that somebody still waits for, or that count against the budget."""
        return len(self._requests) + len(self.calls.pending)

    @property
    def waiting(self) -> int:
        """How many requests are to be sent."""
        return len(self._waiting)

    def has_room(self, inline_bytes: int, promised: int = 0) -> bool:
        """Whether one more request with this many inline bytes is within the broker's budgets.

        `promised`: so many others were told the same and will submit first.
        """
        return (
            len(self._requests) + promised < self.requests_max
            and self.bytes_in_flight + inline_bytes <= self.bytes_max
        )

    def submit(self, parts: Prepared, token: Any, now_ns: int = 0) -> int:
        """Queue a request and return its id, or 0 when the budgets have no room for it now.

        Args:
            token: comes back in its completion; not None.
            now_ns: needed with a timeout, which counts from here, also while offline.

        Raises:
            RequestError: it is larger than this broker takes at all.
        """
        requests = self._requests
        bytes_in_flight = self.bytes_in_flight + parts.inline_bytes
        if len(requests) >= self.requests_max or bytes_in_flight > self.bytes_max:
            if parts.inline_bytes > self.bytes_max:
                raise too_large(parts.head[0], parts.inline_bytes, self.bytes_max)
            return 0
        if parts.inline_bytes > self.inline_bytes_max:
            raise too_large(parts.head[0], parts.inline_bytes, self.inline_bytes_max)
        self._last_id = ident = self._last_id + 1
        request = Request(ident, parts, token)
        timeout_us = parts.tail[2]
        if timeout_us:
            request.deadline_ns = now_ns + timeout_us * _NS_PER_US
        self.bytes_in_flight = bytes_in_flight
        requests[ident] = request
        self._waiting.append(request)
        return ident

    def cancel(self, ident: int) -> bool:
        """Nobody waits for this request any more; its answer will be dropped. False: too late."""
        request = self._requests.get(ident)
        if request is None or request.token is None:
            return False
        request.token = None
        if request.attempt:
            self._cancels.append(ident)
        else:
            self._forget(request)
        return True

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
            due = self._waiting or self._cancels or self.leases.due or self.calls.has_messages
            return bool(due)
        return self._hello_due

    def messages(self) -> list[Message]:
        """Everything to send now, in order, as few messages as fit the limits."""
        if self.phase is not Phase.OPEN:
            if not self._hello_due:
                return []
            self._hello_due = False
            return [[encode(self._hello())]]
        out: list[Message] = []
        calls = self.calls
        if calls.has_messages:
            out += calls.registrations()
        while self._waiting:
            message = infer_message(self._waiting, self.inline_bytes_max)
            if message is not None:
                out.append(message)
        self._ended_waiting = 0
        for start in range(0, len(self._cancels), IDS_PER_MESSAGE_MAX):
            ids = self._cancels[start : start + IDS_PER_MESSAGE_MAX]
            out.append([encode(m.Cancel(tuple(ids)))])
        self._cancels.clear()
        if self.leases.due:
            out += self.leases.messages()
        if calls.has_messages:
            out += calls.messages()
        return out

    def _hello(self) -> m.Hello:
        leases = tuple(self.leases.held)
        return m.Hello(self.secret, self._role, self._software, self._pid, self.incarnation, leases)

    def close(self) -> list[Message]:
        """End the session: everything unanswered fails (see `fail_all`). Returns the BYE."""
        bye: list[Message] = [[encode(m.Bye())]] if self.phase is Phase.OPEN else []
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

        `now_ns` is needed only to shorten the timeouts of requests that are sent again. Completions
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
        if kind is m.Answers:
            self._answers(message, frames, out)  # type: ignore[arg-type]
        elif kind is m.Reply:
            if not self.calls.replied(message, frames, out):  # type: ignore[arg-type]
                self.duplicate_answers += 1
        elif kind is m.Released:
            self._released(message)  # type: ignore[arg-type]
        elif kind is m.Welcome:
            self._welcome(message, now_ns, out)  # type: ignore[arg-type]
        elif kind is m.Refused:
            self._refused(message, out)  # type: ignore[arg-type]
        else:
            self._broken(ProtocolError(f"a broker does not send {kind.__name__}"), out)
        return out

    def _answers(self, message: m.Answers, frames: Sequence[Any], out: list[Completion]) -> None:
        if message.incarnation != self.incarnation or self.phase is not Phase.OPEN:
            self.reset_wanted = True
            return
        if message.regions:
            self.arenas += message.regions
        requests = self._requests
        held = self.leases.held
        for answer in message.answers:
            ident, error, _, outputs, _, final, _ = answer
            request = requests.get(ident)
            if request is None or not final:
                # Answered before; or a part, and no model of this release answers in parts.
                self.duplicate_answers += request is None
                self.leases.refuse(answer)
                continue
            token = request.token
            if error is not None:
                self._failed(request, error, out)
            elif token is not None:
                shared = None
                for tensor in outputs:
                    if tensor[3]:  # not INLINE
                        shared = request
                        if tensor[3] == LEASE:
                            held.add((tensor[4], ident))
                out.append((token, None, answer, frames, shared))
            else:
                self.leases.refuse(answer)
            del requests[ident]
            request.ended = True
            self.bytes_in_flight -= request.parts.inline_bytes

    def _failed(self, request: Request, error: WireError, out: list[Completion]) -> None:
        memory = request.parts.memory
        if request.token is not None:
            failed = None if memory is None else request
            out.append((request.token, error_from_wire(error), None, (), failed))
            request.token = None
        if memory is not None and error[0] in _HELD:
            self._held[request.id] = request

    def _released(self, message: m.Released) -> None:
        if message.incarnation != self.incarnation:
            self.reset_wanted = True
            return
        for ident in message.ids:
            request = self._held.pop(ident, None)
            if request is None:
                # After a reconnect: sent again only to get its memory back.
                request = self._requests.get(ident)
                if request is None or request.token is not None:
                    continue
                self._forget(request)

    def _welcome(self, message: m.Welcome, now_ns: int, out: list[Completion]) -> None:
        if self.phase is not Phase.GREETING:
            self._broken(ProtocolError("WELCOME came without HELLO"), out)
            return
        self._move(Phase.OPEN)
        same_broker = message.resumed and message.incarnation == self.incarnation
        self.incarnation = message.incarnation
        self.server = message.server
        self.server_software = message.software
        self.requests_max = max(1, message.requests_max)
        self.bytes_max = message.bytes_max
        self.inline_bytes_max = min(message.inline_bytes_max, m.INLINE_BYTES_MAX)
        self.calls.repeat(same_broker, out)
        self._resend_requests(same_broker, now_ns)

    def _resend_requests(self, same_broker: bool, now_ns: int) -> None:
        """Unanswered requests again, in order; memory of forgotten ones is asked back."""
        for request in self._held.values():
            request.ended = False
            self._requests[request.id] = request
            self.bytes_in_flight += request.parts.inline_bytes
        self._held.clear()
        self._cancels.clear()
        again: list[Request] = []
        for request in sorted(self._requests.values(), key=lambda request: request.id):
            if request.attempt == 0:
                continue
            if request.token is None:
                # Cancelled or expired. Only its memory matters: sent again and cancelled, the
                # broker answers and releases it, whatever became of the first copy.
                if request.parts.memory is None:
                    self._forget(request)
                    if same_broker:
                        self._cancels.append(request.id)
                    continue
                self._cancels.append(request.id)
            self.resent_requests += 1
            if request.deadline_ns:
                left_us = max(1, (request.deadline_ns - now_ns) // _NS_PER_US)
                if left_us < request.parts.tail[2]:
                    request.parts = request.parts.with_timeout(left_us)
            again.append(request)
        fresh = [one for one in self._waiting if one.attempt == 0 and not one.ended]
        self._waiting = deque([*again, *fresh])
        self._ended_waiting = 0

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
        if self.phase is not Phase.OPEN:
            for request in self._requests.values():
                deadline_ns = request.deadline_ns if request.token is not None else 0
                if deadline_ns and (not soonest or deadline_ns < soonest):
                    soonest = deadline_ns
        return soonest

    def expire(self, now_ns: int) -> list[Completion]:
        """Calls past their deadline, and requests that timed out while there is no broker."""
        out: list[Completion] = []
        self.calls.expire(now_ns, out)
        if self.phase is not Phase.OPEN:
            for request in list(self._requests.values()):
                if request.deadline_ns and request.deadline_ns <= now_ns:
                    fault = Unavailable(
                        "request timed out while the server was unreachable", code=Code.TIMEOUT
                    )
                    self._fail(request, fault, out)
        return out

    def fail_all(self, fault: NaiadError) -> list[Completion]:
        """Give up on everything unanswered, with this error. The session itself goes on."""
        out: list[Completion] = []
        wire = fault.wire()  # one exception per waiter: each collects its own traceback
        for request in list(self._requests.values()):
            self._fail(request, error_from_wire(wire), out)
        self.calls.fail_all(wire, out)
        return out

    def _fail(self, request: Request, fault: NaiadError, out: list[Completion]) -> None:
        token, request.token = request.token, None
        if token is None:
            return
        out.append((token, fault, None, (), None))
        self._forget(request)
        if request.parts.memory is not None and request.attempt:
            self._held[request.id] = request

    def _forget(self, request: Request) -> None:
        request.ended = True
        self._ended_waiting += 1
        if self._ended_waiting * 2 > len(self._waiting) and self._ended_waiting > PRUNE_MIN:
            self._waiting = deque([one for one in self._waiting if not one.ended])
            self._ended_waiting = 0
        if self._requests.pop(request.id, None) is not None:
            self.bytes_in_flight -= request.parts.inline_bytes

    def check_invariants(self) -> None:
        """For tests: the sums and the sets agree."""
        assert self.bytes_in_flight == sum(r.parts.inline_bytes for r in self._requests.values())
        assert not self._held.keys() & self._requests.keys()
        for ident, request in self._held.items():
            assert request.parts.memory is not None, ident
            assert request.attempt > 0, ident
        waiting = [r.id for r in self._waiting if not r.ended]
        assert set(waiting) <= self._requests.keys()
        assert len(set(waiting)) == len(waiting)

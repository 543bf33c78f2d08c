"""The client's side of the conversation with a broker, without a socket, a clock or NumPy. Pure.

Owns which requests and calls are unanswered, what must be sent now, and what an incoming message
means. Both clients (and gateways) wrap I/O around it: `connection_made`, `messages`, `feed`,
`disconnected`, `expire`. Never blocks, never looks into a tensor.

At most one answer per request id is delivered. After a reconnect every unanswered request is sent
again with the next attempt number; the broker joins it to the running copy or runs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

from naiad.client.requests import LEASE, PLAIN, Buffer, PackedInput, Request, Tail, infer_message
from naiad.protocol import messages as m
from naiad.protocol.codec import NAME_BYTES_MAX, decode, encode
from naiad.protocol.errors import (
    Code,
    NaiadError,
    ProtocolError,
    RequestError,
    Unavailable,
    error_from_wire,
)

REQUESTS_MAX: Final = 1024
"""Unanswered requests until a WELCOME says how many the broker takes."""
BYTES_MAX: Final = 64 * 1024 * 1024
CALLS_MAX: Final = 1024
REGIONS_KNOWN_MAX: Final = 4096
"""Server-side segments (workers' arenas) a session remembers; the oldest unused are forgotten."""
PRUNE_MIN: Final = 256
IDS_PER_MESSAGE_MAX: Final = 2048
"""Keeps CANCEL and RELEASE far below the limits of a header and of an array."""

_NS_PER_US: Final = 1000
_HELD: Final = (str(Code.TIMEOUT), str(Code.CANCELLED))
"""After an answer with these codes a worker may still use the request's memory, until RELEASED."""

Message = list[Any]
"""[header, payload frame, ...], as it goes to the socket."""

Completion = tuple[Any, NaiadError | None, m.InferAnswer | None, Sequence[Any]]
"""(token, error, answer, payload frames): what became of a request or (no answer) of a call."""


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


class Call:
    """A control or region call until its REPLY."""

    __slots__ = (
        "deadline_ns", "id", "message", "operation", "region_id", "repeatable", "sent", "token",
    )  # fmt: skip

    def __init__(
        self, ident: int, operation: str, message: Message, token: Any, deadline_ns: int
    ) -> None:
        self.id = ident
        self.operation = operation
        self.message = message
        self.token = token
        self.deadline_ns = deadline_ns
        self.repeatable = operation != "region_register"
        self.region_id = 0
        self.sent = False


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
        self.regions: dict[int, m.Region] = {}
        """Worker arenas that leased outputs lie in, by id."""
        self._role = role
        self._software = software
        self._pid = pid
        self._hello_due = False
        self._last_id = 0
        self._last_call = 0
        self._requests: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._ended_waiting = 0
        """At most so many of them ended before they were sent."""
        self._held: dict[int, Request] = {}
        self._cancels: list[int] = []
        self._releases: list[tuple[int, int]] = []
        self._leases: set[tuple[int, int]] = set()
        self._calls: dict[int, Call] = {}
        self._calls_due: list[Call] = []
        self._own_regions: dict[int, m.Region] = {}
        self._freed: list[Any] = []

    def __repr__(self) -> str:
        return (
            f"<session {self.phase.name} [{len(self._requests)} unanswered,"
            f" {len(self._waiting)} unsent, {len(self._held)} held, {len(self._calls)} calls]>"
        )

    # --- requests ----------------------------------------------------------------------------

    @property
    def unanswered(self) -> int:
        """Requests and calls that somebody still waits for, or that count against the budget."""
        return len(self._requests) + len(self._calls)

    @property
    def waiting(self) -> int:
        """How many requests are to be sent."""
        return len(self._waiting)

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def has_room(self, inline_bytes: int) -> bool:
        """Whether one more request with this many inline bytes is within the broker's budgets."""
        return (
            len(self._requests) < self.requests_max
            and self.bytes_in_flight + inline_bytes <= self.bytes_max
        )

    def make(
        self,
        model: str,
        version: int,
        inputs: tuple[PackedInput, ...],
        token: Any,
        tail: Tail = PLAIN,
        label: str = "",
    ) -> Request:
        """A request that may be given to `submit` once there is room for it.

        Raises:
            RequestError: it can never be sent: too large, or a name that is none.
        """
        if type(model) is not str or len(model) > NAME_BYTES_MAX:
            raise RequestError(f"expected a model's name, got {model!r:.80}")
        if type(version) is not int or not -1 <= version < 2**63:
            raise RequestError(f"model {model!r}: expected a version number, got {version!r:.80}")
        if label and (type(label) is not str or len(label) > NAME_BYTES_MAX):
            raise RequestError(
                f"expected a label of at most {NAME_BYTES_MAX} characters, got {label!r:.80}"
            )
        self._last_id = ident = self._last_id + 1
        request = Request(ident, model, version, label, inputs, tail, token)
        inline_bytes_max = min(self.inline_bytes_max, self.bytes_max)
        if request.inline_bytes > inline_bytes_max:
            raise RequestError(
                f"model {model!r}: {request.inline_bytes} bytes of inline inputs, expected at most"
                f" {inline_bytes_max}; send large tensors through shared memory"
            )
        if request.header_bytes > m.CLIENT_HEADER_BYTES_MAX:
            self._check_header(request)
        return request

    def _check_header(self, request: Request) -> None:
        """The estimate says that it might not fit; only encoding tells."""
        found = infer_message(deque([request]), m.INLINE_BYTES_MAX)
        request.attempt = 0
        size = len(found[0]) + 16 if found else 0  # 16: a longer id, a longer attempt
        if size > m.CLIENT_HEADER_BYTES_MAX:
            raise RequestError(
                f"model {request.model!r}: names and parameters take {size} bytes, expected at"
                f" most {m.CLIENT_HEADER_BYTES_MAX}"
            )
        request.header_bytes = size

    def submit(self, request: Request, now_ns: int = 0) -> int:
        """Queue a request made by `make`; returns its id. The caller has asked `has_room`.

        `now_ns` matters only with a timeout, which counts from here, also while offline.
        """
        timeout_us = request.tail[2]
        if timeout_us:
            request.deadline_ns = now_ns + timeout_us * _NS_PER_US
        ident = request.id
        self._requests[ident] = request
        self.bytes_in_flight += request.inline_bytes
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
            self._free(request)
        return True

    # --- calls, regions, leases --------------------------------------------------------------

    def call(
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
        message = m.Control(self._next_call(), operation, arguments)
        frames: Message = [encode(message)] if payload is None else [encode(message), payload]
        return self._queue(Call(message.call, operation, frames, token, deadline_ns))

    def register_region(self, region: m.Region, token: Any, deadline_ns: int) -> int:
        """Offer a segment; its id must be new in this session. Repeated to every new broker."""
        assert region.id not in self._own_regions
        self._own_regions[region.id] = region
        return self._queue(self._region_call(region, token, deadline_ns))

    def forget_region(self, region_id: int, token: Any, deadline_ns: int) -> int:
        """Take a segment back; its completion comes when no worker has it mapped any more."""
        self._own_regions.pop(region_id, None)
        ident = self._next_call()
        message: Message = [encode(m.ForgetRegion(ident, region_id))]
        return self._queue(Call(ident, "forget_region", message, token, deadline_ns))

    def release(self, leases: Iterable[tuple[int, int]]) -> None:
        """Leased outputs, (region id, request id), are no longer read."""
        for lease in leases:
            if lease in self._leases:
                self._leases.discard(lease)
                self._releases.append(lease)

    def drop_call(self, ident: int) -> None:
        """Nobody waits for this call any more."""
        self._calls.pop(ident, None)

    def _next_call(self) -> int:
        if len(self._calls) >= CALLS_MAX:
            raise Unavailable(
                f"{len(self._calls)} calls are unanswered, at most {CALLS_MAX}; wait for some",
                code=Code.BUDGET_EXCEEDED,
            )
        self._last_call += 1
        return self._last_call

    def _queue(self, call: Call) -> int:
        self._calls[call.id] = call
        self._calls_due.append(call)
        return call.id

    def _region_call(self, region: m.Region, token: Any, deadline_ns: int) -> Call:
        ident = self._next_call()
        message: Message = [encode(m.RegisterRegion(ident, region))]
        call = Call(ident, "register_region", message, token, deadline_ns)
        call.region_id = region.id
        return call

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
            return bool(self._waiting or self._calls_due or self._cancels or self._releases)
        return self._hello_due

    def messages(self) -> list[Message]:
        """Everything to send now, in order, as few messages as fit the limits."""
        if self.phase is not Phase.OPEN:
            if not self._hello_due:
                return []
            self._hello_due = False
            return [[encode(self._hello())]]
        out: list[Message] = []
        if self._calls_due:
            for call in self._calls_due:
                if call.id in self._calls:
                    call.sent = True
                    out.append(call.message)
            self._calls_due.clear()
        while self._waiting:
            message = infer_message(self._waiting, self.inline_bytes_max)
            if message is not None:
                out.append(message)
        self._ended_waiting = 0
        for start in range(0, len(self._cancels), IDS_PER_MESSAGE_MAX):
            ids = self._cancels[start : start + IDS_PER_MESSAGE_MAX]
            out.append([encode(m.Cancel(tuple(ids)))])
        self._cancels.clear()
        for start in range(0, len(self._releases), IDS_PER_MESSAGE_MAX):
            leases = self._releases[start : start + IDS_PER_MESSAGE_MAX]
            out.append([encode(m.Release(tuple(leases)))])
        self._releases.clear()
        return out

    def _hello(self) -> m.Hello:
        leases = tuple(sorted(self._leases)[:IDS_PER_MESSAGE_MAX])
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
            self._reply(message, frames, out)  # type: ignore[arg-type]
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
            self._learn(message.regions)
        requests = self._requests
        for answer in message.answers:
            request = requests.get(answer.id)
            if request is None:
                self.duplicate_answers += 1
                self._give_back(answer)
                continue
            if not answer.final:
                # No model of this release answers in parts; the last part is the answer.
                self._give_back(answer)
                continue
            token = request.token
            error = answer.error
            if error is None:
                for tensor in answer.outputs:
                    if tensor[3] == LEASE:
                        self._leases.add((tensor[4], answer.id))
                if token is not None:
                    out.append((token, None, answer, frames))
                else:
                    self._give_back(answer, delivered=True)
            elif token is not None:
                out.append((token, error_from_wire(error), None, ()))
            del requests[answer.id]
            request.ended = True
            request.token = None
            self.bytes_in_flight -= request.inline_bytes
            if request.memory is not None:
                if error is not None and error[0] in _HELD:
                    self._held[answer.id] = request
                else:
                    self._free(request)

    def _give_back(self, answer: m.InferAnswer, delivered: bool = False) -> None:
        """Nobody reads this answer: its leases end, unless the same ones were delivered before."""
        for tensor in answer.outputs:
            if tensor[3] == LEASE:
                lease = (tensor[4], answer.id)
                if delivered:
                    self._leases.discard(lease)
                if lease not in self._leases:
                    self._releases.append(lease)

    def _learn(self, regions: tuple[m.Region, ...]) -> None:
        for region in regions:
            self.regions[region.id] = region
        if len(self.regions) > REGIONS_KNOWN_MAX:
            used = {region_id for region_id, _ in self._leases}
            for region_id in list(self.regions)[: REGIONS_KNOWN_MAX // 4]:
                if region_id not in used:
                    del self.regions[region_id]

    def _reply(self, message: m.Reply, frames: Sequence[Any], out: list[Completion]) -> None:
        call = self._calls.pop(message.call, None)
        if call is None:
            self.duplicate_answers += 1
            return
        error = None if message.error is None else error_from_wire(message.error)
        if error is not None and call.region_id:
            self._own_regions.pop(call.region_id, None)
        if call.token is not None:
            out.append((call.token, error, None, frames))

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
            self._free(request)

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
        self._resend_calls(same_broker, out)
        self._resend_requests(same_broker, now_ns)

    def _resend_calls(self, same_broker: bool, out: list[Completion]) -> None:
        """Regions first, so that every request that names one comes after it."""
        due: list[Call] = []
        for call in list(self._calls.values()):
            if not call.sent or call.repeatable:
                due.append(call)
                continue
            del self._calls[call.id]
            fault = Unavailable(
                f"the server went away during {call.operation}; whether it was done is unknown",
                code=Code.CONNECTION_LOST,
            )
            out.append((call.token, fault, None, ()))
        if not same_broker:
            offered = {call.region_id for call in due}
            again = [
                self._region_call(region, None, 0)
                for region in self._own_regions.values()
                if region.id not in offered
            ]
            self._calls.update({call.id: call for call in again})
            due = again + due
        self._calls_due = due

    def _resend_requests(self, same_broker: bool, now_ns: int) -> None:
        """Unanswered requests again, in order; memory of forgotten ones is asked back."""
        for request in self._held.values():
            request.ended = False
            self._requests[request.id] = request
            self.bytes_in_flight += request.inline_bytes
        self._held.clear()
        self._cancels.clear()
        again: list[Request] = []
        for request in sorted(self._requests.values(), key=lambda request: request.id):
            if request.attempt == 0:
                continue
            if request.token is None:
                # Cancelled or expired. Only its memory matters: sent again and cancelled, the
                # broker answers and releases it, whatever became of the first copy.
                if request.memory is None:
                    self._forget(request)
                    if same_broker:
                        self._cancels.append(request.id)
                    continue
                self._cancels.append(request.id)
            self.resent_requests += 1
            if request.deadline_ns:
                left_us = max(1, (request.deadline_ns - now_ns) // _NS_PER_US)
                tail = request.tail
                request.tail = (*tail[:2], min(tail[2], left_us), *tail[3:])
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
        soonest = 0
        for call in self._calls.values():
            if call.deadline_ns and (not soonest or call.deadline_ns < soonest):
                soonest = call.deadline_ns
        if self.phase is not Phase.OPEN:
            for request in self._requests.values():
                deadline_ns = request.deadline_ns if request.token is not None else 0
                if deadline_ns and (not soonest or deadline_ns < soonest):
                    soonest = deadline_ns
        return soonest

    def expire(self, now_ns: int) -> list[Completion]:
        """Calls past their deadline, and requests that timed out while there is no broker."""
        out: list[Completion] = []
        for call in list(self._calls.values()):
            if call.deadline_ns and call.deadline_ns <= now_ns:
                del self._calls[call.id]
                fault = Unavailable(
                    f"no reply to {call.operation} in time; the server is busy or unreachable",
                    code=Code.TIMEOUT,
                )
                out.append((call.token, fault, None, ()))
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
        for request in list(self._requests.values()):
            self._fail(request, fault, out)
        for call in self._calls.values():
            if call.token is not None:
                out.append((call.token, fault, None, ()))
        self._calls.clear()
        self._calls_due.clear()
        return out

    def _fail(self, request: Request, fault: NaiadError, out: list[Completion]) -> None:
        token, request.token = request.token, None
        if token is None:
            return
        out.append((token, fault, None, ()))
        self._forget(request)
        if request.attempt and request.memory is not None:
            self._held[request.id] = request
        else:
            self._free(request)

    def _forget(self, request: Request) -> None:
        request.ended = True
        self._ended_waiting += 1
        if self._ended_waiting * 2 > len(self._waiting) and self._ended_waiting > PRUNE_MIN:
            self._waiting = deque([one for one in self._waiting if not one.ended])
            self._ended_waiting = 0
        if self._requests.pop(request.id, None) is not None:
            self.bytes_in_flight -= request.inline_bytes

    def _free(self, request: Request) -> None:
        if request.memory is not None:
            self._freed.append(request.memory)
            request.memory = None

    def take_freed(self) -> list[Any]:
        """Memory given with requests that no process reads or writes any more."""
        if not self._freed:
            return self._freed
        freed, self._freed = self._freed, []
        return freed

    def check_invariants(self) -> None:
        """For tests: the sums and the sets agree."""
        assert self.bytes_in_flight == sum(r.inline_bytes for r in self._requests.values())
        assert not self._held.keys() & self._requests.keys()
        for ident, request in self._held.items():
            assert request.memory is not None, ident
            assert request.attempt > 0, ident
        waiting = [r.id for r in self._waiting if not r.ended]
        assert set(waiting) <= self._requests.keys()
        assert len(set(waiting)) == len(waiting)

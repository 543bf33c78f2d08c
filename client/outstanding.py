"""The unanswered requests of one client: within which budgets, sent when, settled by what. Pure.

Owns request ids, the budgets of requests and inline bytes, and a request's memory until no process
uses it. Knows no connection: naiad.client.session says when one was lost and when one is there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from naiad.client.calls import BROKER_DEATHS_MAX, Before, Completion, Message, deadly
from naiad.client.leases import Leases
from naiad.client.packing import Request, infer_message
from naiad.client.requests import LEASE, Prepared, too_large
from naiad.protocol import messages as m
from naiad.protocol.codec import encode
from naiad.protocol.errors import Code, NaiadError, Unavailable, WireError, error_from_wire

REQUESTS_MAX: Final = 1024
"""Unanswered requests until a WELCOME says how many the broker takes."""
BYTES_MAX: Final = 64 * 1024 * 1024
TIMEOUT_MARGIN_NS: Final = 1_000_000_000
"""So long after a request's own timeout the broker's answer is not waited for any more."""
PRUNE_MIN: Final = 256
IDS_PER_MESSAGE_MAX: Final = 2048
"""Keeps CANCEL far below the limits of a header and of an array."""

_NS_PER_US: Final = 1000
_HELD: Final = (str(Code.TIMEOUT), str(Code.CANCELLED), str(Code.WORKER_DIED))
"""After an answer with these codes a worker may still use the request's memory, until RELEASED."""


class Outstanding:
    """Requests from `submit` until their answer, and until RELEASED when that comes later."""

    def __init__(self, leases: Leases) -> None:
        self.count_max = REQUESTS_MAX
        self.bytes_max = BYTES_MAX
        self.inline_bytes_max = m.INLINE_BYTES_MAX
        """Of one message; the other two are of all that is unanswered."""
        self.inline_bytes = 0
        """Of all that is unanswered."""
        self.duplicate_answers = 0
        self.resent_count = 0
        self.unanswered: dict[int, Request] = {}
        """By id; always the same dict. To be read only, as the next three."""
        self.waiting: deque[Request] = deque()
        """To be sent, but for those that have ended meanwhile."""
        self.held: dict[int, Request] = {}
        """Failed, while a worker may use their memory."""
        self.cancels: list[int] = []
        self.timed: list[tuple[int, int]] = []
        """(deadline_ns, id), a heap: of every unanswered request with a timeout, and of some that
        have ended. To be read only."""
        self._leases = leases
        self._last_id = 0
        self._ended_waiting = 0
        """At most so many of them ended before they were sent."""

    # --- from the user -----------------------------------------------------------------------

    def has_room(self, inline_bytes: int, promised: int = 0) -> bool:
        """Whether one more request with this many inline bytes is within the broker's budgets.

        `promised`: so many others were told the same and will submit first.
        """
        return (
            len(self.unanswered) + promised < self.count_max
            and self.inline_bytes + inline_bytes <= self.bytes_max
        )

    def submit(self, parts: Prepared, token: Any, now_ns: int = 0) -> int:
        """Queue a request and return its id, or 0 when the budgets have no room for it now.

        Args:
            token: comes back in its completion; not None.
            now_ns: needed with a timeout, which counts from here, also while offline.

        Raises:
            RequestError: it is larger than this broker takes at all.
        """
        requests = self.unanswered
        bytes_in_flight = self.inline_bytes + parts.inline_bytes
        if len(requests) >= self.count_max or bytes_in_flight > self.bytes_max:
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
            self._remember(request)
        self.inline_bytes = bytes_in_flight
        requests[ident] = request
        self.waiting.append(request)
        return ident

    def cancel(self, ident: int) -> bool:
        """Nobody waits for this request any more; its answer will be dropped. False: too late."""
        request = self.unanswered.get(ident)
        if request is None or request.token is None:
            return False
        request.token = None
        if request.attempt:
            self.cancels.append(ident)
        else:
            self._forget(request)
        return True

    # --- to the broker -----------------------------------------------------------------------

    def infers(self) -> list[Message]:
        """Everything that waits, in order, in as few messages as fit the limits."""
        out = []
        waiting = self.waiting
        while waiting:
            message = infer_message(waiting, self.inline_bytes_max)
            if message is not None:
                out.append(message)
        self._ended_waiting = 0
        return out

    def cancellations(self) -> list[Message]:
        """What to send now, after the requests."""
        out: list[Message] = []
        for start in range(0, len(self.cancels), IDS_PER_MESSAGE_MAX):
            ids = self.cancels[start : start + IDS_PER_MESSAGE_MAX]
            out.append([encode(m.Cancel(tuple(ids)))])
        self.cancels.clear()
        return out

    def resend(self, same_broker: bool, before: Before, now_ns: int, out: list[Completion]) -> None:
        """Unanswered requests again, in order; memory of forgotten ones is asked back.

        What was in flight at too many deaths of brokers fails, and its memory is not used again:
        nobody is left to say what becomes of it.
        """
        if before is not Before.LIVES:
            unsent = {request.id for request in self.waiting}
            for request in (*self.unanswered.values(), *self.held.values()):
                if request.id not in unsent:
                    request.deaths = before.deaths(request.deaths)
        for ident in list(self.held):
            request = self.held[ident]
            if request.deaths >= BROKER_DEATHS_MAX:
                continue
            request.ended = False
            self.unanswered[ident] = request
            self.inline_bytes += request.parts.inline_bytes
            del self.held[ident]
        self.cancels.clear()
        again: list[Request] = []
        for request in sorted(self.unanswered.values(), key=lambda request: request.id):
            if request.attempt == 0:
                continue
            if request.deaths >= BROKER_DEATHS_MAX:
                self._give_up(request, out)
                continue
            if request.token is None:
                # Cancelled or expired. Only its memory matters: sent again and cancelled, the
                # broker answers and releases it, whatever became of the first copy.
                if request.parts.memory is None:
                    self._forget(request)
                    if same_broker:
                        self.cancels.append(request.id)
                    continue
                self.cancels.append(request.id)
            self.resent_count += 1
            if request.deadline_ns:
                left_us = max(1, (request.deadline_ns - now_ns) // _NS_PER_US)
                if left_us < request.parts.tail[2]:
                    request.parts = request.parts.with_timeout(left_us)
            again.append(request)
        fresh = [one for one in self.waiting if one.attempt == 0 and not one.ended]
        self.waiting = deque([*again, *fresh])
        self._ended_waiting = 0

    def _give_up(self, request: Request, out: list[Completion]) -> None:
        if request.token is not None:
            self._fail(request, deadly(f"this request of '{request.parts.head[0]}'"), out)
            return
        self._forget(request)
        if request.parts.memory is not None:
            self.held[request.id] = request

    # --- from the broker ---------------------------------------------------------------------

    def answered(
        self, answers: Iterable[m.InferAnswer], frames: Sequence[Any], out: list[Completion]
    ) -> None:
        """Answers of a message with these payload frames; see Session.feed for `out`."""
        requests = self.unanswered
        held = self._leases.held
        for answer in answers:
            ident, error, _, outputs, _, final, _ = answer
            request = requests.get(ident)
            if request is None or not final:
                # Answered before; or a part, and no model of this release answers in parts.
                self.duplicate_answers += request is None
                self._leases.refuse(answer)
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
                self._leases.refuse(answer)
            del requests[ident]
            request.ended = True
            self.inline_bytes -= request.parts.inline_bytes

    def _failed(self, request: Request, error: WireError, out: list[Completion]) -> None:
        memory = request.parts.memory
        if request.token is not None:
            failed = None if memory is None else request
            out.append((request.token, error_from_wire(error), None, (), failed))
            request.token = None
        if memory is not None and error[0] in _HELD:
            self.held[request.id] = request

    def released(self, ids: Iterable[int]) -> None:
        """No process uses the memory of these any more."""
        for ident in ids:
            request = self.held.pop(ident, None)
            if request is None:
                # After a reconnect: sent again only to get its memory back.
                request = self.unanswered.get(ident)
                if request is None or request.token is not None:
                    continue
                self._forget(request)

    # --- time and failure --------------------------------------------------------------------

    def deadline_ns(self, is_connected: bool = False) -> int:
        """When `expire` has something to do; 0: never."""
        timed = self.timed
        while timed:
            request = self.unanswered.get(timed[0][1])
            if request is not None and request.token is not None:
                return timed[0][0] + (TIMEOUT_MARGIN_NS if is_connected else 0)
            heapq.heappop(timed)
        return 0

    def expire(self, now_ns: int, out: list[Completion], is_connected: bool = False) -> None:
        """Fail those whose timeout is over.

        Connected, it is the broker that answers them, and only when it does not, because it is
        stopped or hangs, they fail here TIMEOUT_MARGIN_NS later. To the broker they are cancelled
        then: what it does say some day says what becomes of their memory.
        """
        while True:
            deadline_ns = self.deadline_ns(is_connected)
            if not deadline_ns or deadline_ns > now_ns:
                return
            request = self.unanswered[self.timed[0][1]]
            if is_connected:
                out.append((request.token, _unanswered(request), None, (), None))
                self.cancel(request.id)
            else:
                fault = Unavailable(
                    "request timed out while the server was unreachable", code=Code.TIMEOUT
                )
                self._fail(request, fault, out)

    def _remember(self, request: Request) -> None:
        """That it has a timeout. Those that have ended are swept out, never more than they are."""
        if len(self.timed) > 2 * len(self.unanswered) + PRUNE_MIN:
            self.timed = [entry for entry in self.timed if entry[1] in self.unanswered]
            heapq.heapify(self.timed)
        heapq.heappush(self.timed, (request.deadline_ns, request.id))

    def fail_all(self, wire: WireError, out: list[Completion]) -> None:
        """Give up on everything with this error: one exception per waiter, each collects its own
        traceback."""
        for request in list(self.unanswered.values()):
            self._fail(request, error_from_wire(wire), out)

    def _fail(self, request: Request, fault: NaiadError, out: list[Completion]) -> None:
        token, request.token = request.token, None
        if token is None:
            return
        out.append((token, fault, None, (), None))
        self._forget(request)
        if request.parts.memory is not None and request.attempt:
            self.held[request.id] = request

    def _forget(self, request: Request) -> None:
        request.ended = True
        self._ended_waiting += 1
        if self._ended_waiting * 2 > len(self.waiting) and self._ended_waiting > PRUNE_MIN:
            self.waiting = deque([one for one in self.waiting if not one.ended])
            self._ended_waiting = 0
        if request.id in self.unanswered:
            # No call in between: an interruption must not part these two.
            self.inline_bytes -= request.parts.inline_bytes
            del self.unanswered[request.id]

    def check_invariants(self) -> None:
        """For tests: the sums and the sets agree."""
        assert self.inline_bytes == sum(r.parts.inline_bytes for r in self.unanswered.values())
        assert not self.held.keys() & self.unanswered.keys()
        timed = {ident for _, ident in self.timed}
        assert timed >= {r.id for r in self.unanswered.values() if r.deadline_ns and r.token}
        for ident, request in self.held.items():
            assert request.parts.memory is not None, ident
            assert request.attempt > 0, ident
        waiting = [r.id for r in self.waiting if not r.ended]
        assert set(waiting) <= self.unanswered.keys()
        assert len(set(waiting)) == len(waiting)


def _unanswered(request: Request) -> NaiadError:
    margin_s = TIMEOUT_MARGIN_NS / 1e9
    return Unavailable(
        f"request timed out: the server is connected, but gave no answer within the timeout and"
        f" {margin_s:g} s more; it is stopped, or hangs (see 'naiad status')",
        code=Code.TIMEOUT,
    )

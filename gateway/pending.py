"""One call from its start until its answer: what the client library calls back.

Costs no task for the usual call. Those that need something first (the id of a region that is
registered by name, a model's configuration for classification) wait for it in a task of their own,
and so do those behind them where an order is to be kept. Owns the call's place in the budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from naiad.client.aio import AsyncClient
from naiad.client.results import InferResult
from naiad.gateway.calls import AnswerOutput, InferAnswer, InferCall
from naiad.gateway.client_form import answer_of, out_of_arena, prepared
from naiad.gateway.error_text import over_budget
from naiad.gateway.known_classes import Classes
from naiad.gateway.long_work import LongWork
from naiad.gateway.lookups import NOTHING, Lookups
from naiad.protocol.errors import Code, InternalError, NaiadError

LOG: Final = logging.getLogger("naiad.gateway")

Outcome = InferAnswer | NaiadError
Done = Callable[[Outcome], None]
"""Called once, never inside `start`, and not after `cancel`."""

BEGUN_AT_ONCE_MAX: Final = 32
"""Of calls that waited for one before them: 1 ms."""
SERVER_FULL: Final = "the server's budget for this gateway is used up"


class Order:
    """Calls that reach the broker as they were started, whatever is looked up for each of them."""

    __slots__ = ("_is_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Pending] = deque()
        """The first of them is not ready, or it is the next one's turn soon."""
        self._is_due = False

    @property
    def is_held_up(self) -> bool:
        """Whether a call that needs nothing has to wait too."""
        return bool(self._waiting)

    def join(self, call: Pending) -> None:
        """Then say `go_on` when it is ready, or `go_on_soon` when it is over."""
        self._waiting.append(call)

    def go_on(self) -> None:
        """Begin those that nobody before them keeps from it."""
        if self._is_due:
            return
        waiting = self._waiting
        for _ in range(BEGUN_AT_ONCE_MAX):
            if not waiting or not waiting[0].is_ready:
                return
            waiting.popleft().begin()
        self.go_on_soon()

    def go_on_soon(self) -> None:
        """When others, who may be over too, have said so."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on_later)

    def _go_on_later(self) -> None:
        self._is_due = False
        self.go_on()


class Pending:
    """A call under way; `cancel` when nobody waits for it any more."""

    __slots__ = ("_call", "_client", "_done", "_ended", "_found", "_id", "_is_over", "_long_work",
                 "_lookups", "_order", "_retries", "_task")  # fmt: skip

    def __init__(
        self,
        client: AsyncClient,
        lookups: Lookups,
        long_work: LongWork,
        call: InferCall,
        done: Done,
        ended: Callable[[], None],
    ) -> None:
        self._client = client
        self._lookups = lookups
        self._call = call
        self._done = done
        self._ended = ended
        self._long_work = long_work
        self._found = NOTHING
        self._order: Order | None = None
        self._id = 0
        self._is_over = False
        self._retries = 1
        self._task: asyncio.Task[None] | None = None

    def start(self, order: Order | None = None) -> None:
        """Give the call to the broker. Raises NaiadError when it cannot be sent at all."""
        found = self._lookups.known(self._call)
        if found is None:
            self._task = asyncio.get_running_loop().create_task(self._look_up())
        else:
            self._found = found
            if order is None or not order.is_held_up:
                self._submit()
                return
        if order is not None:
            self._order = order
            order.join(self)

    def _submit(self) -> None:
        parts = prepared(self._client, self._call, self._found.ids)
        self._id = self._client.submit(parts, self)
        if not self._id:
            raise over_budget(SERVER_FULL)

    async def _look_up(self) -> None:
        try:
            self._found = await self._lookups.of(self._call)
        except NaiadError as fault:
            self._end(fault)
        except Exception:
            LOG.exception("what a call needs could not be looked up")
            self._end(InternalError("a call could not be begun inside the gateway; see its log"))
        self._task = None
        if self._order is None:
            self.begin()
        else:
            self._order.go_on()

    @property
    def is_ready(self) -> bool:
        """Whether it can be begun, or is over already."""
        return self._task is None or self._is_over

    def begin(self) -> None:
        """Give it to the broker, unless it is over."""
        self._order = None
        if self._is_over:
            return
        try:
            self._submit()
        except NaiadError as fault:
            self._end(fault)

    def cancel(self) -> None:
        """Nobody waits: the broker is told at once. Harmless when it is over."""
        if self._is_over:
            return
        self._is_over = True
        self._ended()
        if self._task is not None:
            self._task.cancel()
        if self._id:
            self._client.abandon(self._id)
        if self._order is not None:
            self._order.go_on_soon()

    # --- what the client library calls -----------------------------------------------------------

    def done(self) -> bool:
        return self._is_over

    def set_result(self, result: InferResult, /) -> None:
        try:
            answer = answer_of(self._call, result)
            if self._found.classes is not None:
                self._classify(answer, self._found.classes)
                return
            self._end(answer)
        except NaiadError as fault:
            self._end(fault)

    def _classify(self, answer: InferAnswer, classes: Classes) -> None:
        """At once, or beside others when that takes long. Raises RequestError."""
        from naiad.gateway.classification import classified, is_light

        counts = {one.name: one.classification for one in self._call.outputs}
        wanted = [(one, counts.get(one.name, 0)) for one in answer.outputs]
        if is_light(wanted, classes):
            rows = [classified(one, count, classes) if count else one for one, count in wanted]
            self._end(answer._replace(outputs=tuple(rows)))
            return
        self._id = 0  # the client library has no more to do with it
        work = self._classify_apart(answer, wanted, classes)
        self._task = asyncio.get_running_loop().create_task(work)

    async def _classify_apart(
        self, answer: InferAnswer, wanted: list[tuple[AnswerOutput, int]], classes: Classes
    ) -> None:
        from naiad.gateway.classification import classified_apart

        try:
            rows = [
                await classified_apart(one, count, classes, self._long_work) if count else one
                for one, count in wanted
            ]
            outcome: Outcome = answer._replace(outputs=tuple(rows))
        except NaiadError as fault:
            outcome = fault
        except Exception:
            LOG.exception("an answer could not be classified")
            outcome = InternalError("classification failed inside the gateway; see its log")
        self._task = None
        self._end(outcome)

    def set_exception(self, fault: NaiadError, /) -> None:
        if self._found.ids and self._retries and fault.code is Code.NOT_FOUND:
            # Somebody unregistered a name and registered it again: its id is a new one.
            self._retries -= 1
            self._id = 0
            self._lookups.forget(self._found.ids)
            self._task = asyncio.get_running_loop().create_task(self._look_up())
            return
        inline = out_of_arena(self._call) if fault.code is Code.NOT_FOUND else None
        if inline is not None:
            # The server does not take this gateway's memory.
            self._call = inline
            try:
                self._submit()
                return
            except NaiadError as refused:
                fault = refused
        self._end(fault)

    def _end(self, outcome: Outcome) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._ended()
        if isinstance(outcome, NaiadError):
            # Its frames hold this call: a circle that would keep the request's memory.
            outcome = outcome.with_traceback(None)
        try:
            self._done(outcome)
        except Exception:
            # The client library would lose the answers behind this one in the same turn.
            LOG.exception("an answer could not be handed on")

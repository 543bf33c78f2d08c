"""One Driver in an event loop: what AsyncClient and gateways stand on.

Owns no thread: the loop watches the socket's descriptor. That is edge-triggered, so every turn
receives until nothing is left after whatever was sent. Requests of one iteration of the loop travel
in one message. Holds no calls for people: those are AsyncClient's.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from typing import Any, Final, Protocol

from naiad.client import control
from naiad.client.calls import Ask, Completion
from naiad.client.deadlines import deadline_after
from naiad.client.driver import Driver, copy_of, over_budget, timed_out_in_line
from naiad.client.memory import Placement, RegistrationToken
from naiad.client.packing import Request
from naiad.client.regions import ClientRegion
from naiad.client.requests import PackedInput, Prepared
from naiad.client.results import InferResult
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable

BURST_REQUESTS_MAX: Final = 8
"""So many are sent at once, without waiting for the end of the turn: the broker and a worker begin
with them while this process prepares the others. Otherwise all of them take turns on one core."""

SETTLED_AT_ONCE_MAX: Final = 32
SETTLED_AT_ONCE_NS: Final = 1_000_000
"""Answers that are handed on at once, and then others have their turn: each answer may wake a task
that runs in the next iteration of the event loop. A batch of a thousand took all its time."""

_now_ns: Final = time.monotonic_ns


class Receiver(Protocol):
    """Takes the one outcome of a request, inside the event loop; raises nothing.

    `done` says that nobody wants it any more.
    """

    def done(self) -> bool: ...

    def set_result(self, result: InferResult, /) -> None: ...

    def set_exception(self, fault: NaiadError, /) -> None: ...


class LoopDriver:
    """Belongs to the event loop in which it is first used, and is used in no other."""

    def __init__(self, driver: Driver, *, waits_for_room: bool) -> None:
        self._driver = driver
        self._session = driver.session
        self._waits_for_room = waits_for_room
        self._loop: asyncio.AbstractEventLoop | None = None
        self._memory = driver.memory
        driver.when_lease_ends(self._lease_ended)
        self._is_turn_due = False
        self._burst = 0
        self._sent_again: dict[asyncio.Future[Any], int] = {}
        """Ids of requests that were sent again, inline."""
        self._completions: list[Completion] = []
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        """Who waits for room, and for how many inline bytes."""
        self._watched: tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._farewell = weakref.finalize(self, driver.close)
        driver.connection.before_close(self._unwatch)

    # --- asking, without waiting -----------------------------------------------------------------

    def submit(self, parts: Prepared, receiver: Receiver) -> int:
        """Ask without waiting and without a task: a gateway's way. Call it in the event loop.

        Returns the request's id for `abandon`, or 0 when the budgets have no room for it now.
        Raises RequestError for what this server takes at no time.
        """
        if self._loop is None:
            self._attach()
        session = self._session
        if session.fault is not None:
            raise copy_of(session.fault)
        now_ns = _now_ns() if parts.tail[2] or parts.memory is not None else 0
        if parts.memory is not None:
            self._memory.announce(now_ns)
        ident = 0 if self._queue else session.submit(parts, receiver, now_ns)
        if ident:
            self._burst += 1
            if self._burst >= BURST_REQUESTS_MAX:
                self._burst = 0
                self._driver.send()
            if not self._is_turn_due:
                self._turn_soon()
        return ident

    def abandon(self, ident: int) -> None:
        """Nobody waits for this request any more; its receiver says that it is done."""
        if self._session.cancel(ident):
            self._turn_soon()

    def share(
        self, inputs: tuple[PackedInput, ...]
    ) -> tuple[tuple[PackedInput, ...], Placement | None]:
        """The inputs for `checked`, large ones in shared memory as far as there is any; and what
        keeps that memory alive."""
        bytes_min = self._memory.bytes_min
        for item in inputs:
            if item[6] >= bytes_min and item[7] is not None:
                return self._memory.placed(inputs)
        return inputs, None

    def region_now(self, size: int) -> ClientRegion | None:
        """Shared memory without waiting: None when there is no connection yet, or no room."""
        if not self._memory.is_ready:
            return None
        try:
            return self._memory.allocate(size)
        except Unavailable:
            return None

    # --- asking, and waiting ---------------------------------------------------------------------

    async def _ask(self, ask: Ask, timeout_s: float) -> Any:
        loop = self._attach()
        session = self._session
        if session.fault is not None:
            raise copy_of(session.fault)
        future: asyncio.Future[Any] = loop.create_future()
        ident = ask(session.calls, future, deadline_after(timeout_s, "timeout_s"))
        self._turn_soon()
        try:
            return await future
        finally:
            if future.cancelled():
                session.calls.drop(ident)

    async def _room(self, loop: asyncio.AbstractEventLoop, parts: Prepared, begun_ns: int) -> None:
        """Until the budgets have room for these parts; first come, first served.

        `begun_ns`: since when its timeout counts; 0: it has none.
        """
        if not self._waits_for_room:
            raise over_budget(self._session)
        granted: asyncio.Future[None] = loop.create_future()
        self._queue.append((granted, parts.inline_bytes))
        left_s = (begun_ns + parts.tail[2] * 1000 - _now_ns()) / 1e9 if begun_ns else None
        try:
            await asyncio.wait_for(granted, left_s) if begun_ns else await granted
        except asyncio.CancelledError:
            self._grant()  # what this task was promised, another may have
            raise
        except TimeoutError:
            self._grant()
            raise timed_out_in_line(self._session) from None
        if self._session.fault is not None:
            raise copy_of(self._session.fault)

    def _grant(self) -> None:
        """Wake those at the head of the queue that may submit now."""
        session = self._session
        count = bytes_ = 0
        while self._queue:
            granted, inline_bytes = self._queue[0]
            if not granted.done():
                bytes_ += inline_bytes
                if not session.fault and not session.has_room(bytes_, count):
                    return
                count += 1
                granted.set_result(None)
            self._queue.popleft()

    # --- the event loop --------------------------------------------------------------------------

    def _attach(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RequestError(
                    "this AsyncClient belongs to the event loop in which it was first used, and was"
                    " now used in another; make one in each loop (asyncio.run() makes a new one)",
                    code=Code.UNSUPPORTED,
                )
            self._loop = loop
        return loop

    def _turn_soon(self) -> None:
        if not self._is_turn_due and self._loop is not None:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Send what is due, take in what came, and see to it that the next turn comes in time."""
        self._is_turn_due = False
        self._burst = 0
        driver = self._driver
        completions = self._completions
        if completions:  # left from the turn before; nothing is read until they are handed on
            driver.send()
            self._turn_soon()
        else:
            driver.turn(_now_ns(), completions)
        if completions:
            self._settle()
        if completions or not driver.is_drained:
            self._turn_soon()
        if not self._watched and driver.connection.is_open:
            self._watch()
        deadline_ns = driver.deadline_ns()
        if deadline_ns != self._timer_ns:
            self._set_timer(deadline_ns)

    def _readable(self) -> None:
        if not self._is_turn_due:  # that one reads what came, when it may: once in an iteration
            self._turn()

    def _settle(self) -> None:
        """Hand on as many answers as may be at once."""
        memory = self._memory
        settled = 0
        end_ns = _now_ns() + SETTLED_AT_ONCE_NS
        try:
            for token, error, answer, frames, request in self._completions:
                if settled == SETTLED_AT_ONCE_MAX or (settled and _now_ns() >= end_ns):
                    break
                settled += 1
                outcome: Any = error
                if token.done():
                    if answer is not None:
                        self._session.leases.give_back(answer)
                    elif error is not None and isinstance(token, RegistrationToken):
                        memory.refused(error)
                    continue
                if answer is not None:
                    if request is None:
                        token.set_result(InferResult(answer, frames))
                        continue
                    outcome = memory.result(request, answer, frames)
                elif error is None:
                    outcome = control.parsed_reply(frames)
                elif request is not None and self._again(token, request, error):
                    continue
                if isinstance(outcome, NaiadError):
                    token.set_exception(outcome)
                else:
                    token.set_result(outcome)
        finally:
            del self._completions[:settled]
        if self._queue:
            self._grant()

    def _again(self, future: asyncio.Future[Any], request: Request, fault: NaiadError) -> bool:
        """Send a request inline whose shared memory the server did not take."""
        parts = self._memory.inline_again(request, fault)
        ident = self._session.submit(parts, future, _now_ns()) if parts is not None else 0
        if ident and isinstance(future, asyncio.Future):
            self._sent_again[future] = ident
            future.add_done_callback(lambda done: self._sent_again.pop(done, None))
        return ident > 0

    def _lease_ended(self) -> None:
        """In any thread, maybe inside the garbage collector."""
        loop = self._loop
        if loop is not None and not self._is_turn_due and not loop.is_closed():
            loop.call_soon_threadsafe(self._turn_soon)

    def _monitor(self) -> None:
        self._driver.watch()
        self._turn()

    def _watch(self) -> None:
        assert self._loop is not None
        connection = self._driver.connection
        self._watched = (connection.descriptor, connection.monitor_descriptor)
        self._loop.add_reader(connection.descriptor, self._readable)
        self._loop.add_reader(connection.monitor_descriptor, self._monitor)
        self._turn_soon()  # what came before the descriptors were watched gives no edge

    def _unwatch(self) -> None:
        watched, self._watched = self._watched, ()
        if self._loop is not None and not self._loop.is_closed():
            for descriptor in watched:
                self._loop.remove_reader(descriptor)

    def _set_timer(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ns = deadline_ns
        if deadline_ns:
            assert self._loop is not None
            delay_s = max(0.0, (deadline_ns - _now_ns()) / 1e9)
            self._timer = self._loop.call_later(delay_s, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        self._timer_ns = 0
        self._turn()

    # --- the end -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Say BYE. Unanswered requests fail; arrays of results stay valid."""
        self._farewell.detach()
        self._completions += self._driver.close()
        while self._completions:
            self._settle()
        self._grant()
        self._set_timer(0)

    def after_fork(self, fault: RequestError) -> None:
        """In a child process: nothing here may be used."""
        self._farewell.detach()
        self._session.end(fault)

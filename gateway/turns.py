"""Whose turn it is: a client that asks for much at once does not keep others from theirs.

A connection works on what comes for TURN_SECONDS and gives the rest to `Turns`, which goes on with
one connection after the other, for TURN_SECONDS altogether in each iteration of the event loop. So
who asks for little is served in every iteration, however many ask for much. Owns what waits; knows
no protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from naiad.gateway.transports import has_tls

TURN_SECONDS: Final = 0.001
"""Of the processor, for one connection, a request begun being finished. About a dozen requests:
fewer would cost noticeably more for each. Time without the processor is nobody's fault."""
TASK_SECONDS: Final = 0.0002
"""About what a task takes for a request or an answer: it runs behind the turn in which it was made
or woken, and counts in it."""


class Turns:
    """Of one process, in its event loop."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._connections: dict[object, Callable[[], None]] = {}
        """In their order: how each goes on."""
        self._calls: deque[asyncio.Future[None]] = deque()
        self._tasks: deque[asyncio.Future[None]] = deque()
        self._is_shared = False
        """The time of tasks in this iteration has begun, or is promised to one for the next;"""
        self._shared_end = 0.0
        """when it is over."""
        self._is_due = False

    def later(self, connection: object, work: Callable[[], None]) -> None:
        """Go on with this connection when those before it had their turns. It has one place."""
        self._connections.setdefault(connection, work)
        self._run_soon()

    def close_later(self, transport: asyncio.Transport) -> bool:
        """Close it in its turn: thousands of clients may go together. For `eof_received`.

        False when it has to be closed at once: nothing with TLS outlives the client's end of it.
        """
        if has_tls(transport):
            return False
        # A place of its own: the connection may have one with what it sent before.
        self.later(transport, transport.close)
        return True

    async def turn(self) -> None:
        """Wait for a turn of one call, for what may wait behind inference: one in an iteration.

        These are a queue of their own: no connection waits behind a thousand of them.
        """
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.append(granted)
        self._run_soon()
        await granted

    async def share(self, owed: float = TASK_SECONDS) -> None:
        """Wait before a piece of work in a task, if such pieces took TURN_SECONDS in this iteration
        of the loop, all tasks together. `owed`: what it leads to counts as so much."""
        if not self._is_shared:
            self._begin_share()
        elif self._clock() >= self._shared_end:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._tasks.append(granted)
            self._run_soon()
            await granted
            self._begin_share()
        self._shared_end -= owed

    def _begin_share(self) -> None:
        self._is_shared = True
        self._shared_end = self._clock() + TURN_SECONDS
        self._run_soon()

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        try:
            _grant_one(self._calls)
            self._is_shared = _grant_one(self._tasks)
            self._go_on()
        finally:
            if self._connections or self._calls or self._tasks or self._is_shared:
                self._run_soon()

    def _go_on(self) -> None:
        waiting = self._connections
        end = self._clock() + TURN_SECONDS
        for _ in range(len(waiting)):  # whoever comes again waits for the next iteration
            work = waiting.pop(next(iter(waiting)))
            work()
            if self._clock() >= end:
                return


def _grant_one(waiting: deque[asyncio.Future[None]]) -> bool:
    """Whether anybody waited."""
    while waiting:
        granted = waiting.popleft()
        if not granted.done():
            granted.set_result(None)
            return True
    return False

"""Whose turn it is: a client that asks for much at once does not keep others from theirs.

A connection works on what comes for TURN_SECONDS and gives the rest to `Turns`, which goes on with
one connection after the other, for TURN_SECONDS altogether in each iteration of the event loop. So
who asks for little is served in every iteration, however many ask for much. Owns what waits; knows
no protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

TURN_SECONDS: Final = 0.001
"""Of work for one connection, a request begun being finished. About a dozen requests: fewer would
cost noticeably more for each."""
TASK_SECONDS: Final = 0.0002
"""About what a task takes for a request or an answer: it runs behind the turn in which it was made
or woken, and counts in it."""


class Turns:
    """Of one process, in its event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[object, tuple[Callable[[], None], float]] = {}
        """By connection, in their order: what to do, and seconds that follow from it."""
        self._is_due = False

    def later(self, owner: object, work: Callable[[], None], debt_seconds: float = 0.0) -> None:
        """Go on with this connection when those before it had their turns. It has one place."""
        self._waiting.setdefault(owner, (work, debt_seconds))
        self._run_soon()

    async def turn(self) -> None:
        """Wait for a turn of one task; for what may wait behind inference."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.later(granted, partial(_grant, granted), TASK_SECONDS)
        await granted

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        waiting = self._waiting
        end = self._clock() + TURN_SECONDS
        try:
            for _ in range(len(waiting)):  # whoever comes again waits for the next iteration
                work, debt_seconds = waiting.pop(next(iter(waiting)))
                end -= debt_seconds
                work()
                if self._clock() >= end:
                    break
        finally:
            if waiting:
                self._run_soon()


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)

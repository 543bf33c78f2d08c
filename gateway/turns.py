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
from typing import Final

TURN_SECONDS: Final = 0.001
"""Of work for one connection, a request begun being finished. About a dozen requests: fewer would
cost noticeably more for each."""


class Turns:
    """Of one process, in its event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[object, Callable[[], None]] = {}
        """By connection, in their order."""
        self._is_due = False

    def later(self, owner: object, work: Callable[[], None]) -> None:
        """Go on with this connection when those before it had their turns. It has one place."""
        self._waiting.setdefault(owner, work)
        self._run_soon()

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
                owner = next(iter(waiting))
                waiting.pop(owner)()
                if self._clock() >= end:
                    break
        finally:
            if waiting:
                self._run_soon()

"""When a gateway looks for objects that only refer to each other: when it delays nobody, or must.

Reference counting frees nearly everything. Looking at all objects takes 50 to 130 ms of the event
loop with 3,600 connections, and the interpreter would do it as soon as it has made enough of them:
while they come. Young objects are left to it; a look at all waits for an idle moment, or for growth
that must not go on. Owns the collector's settings of its process.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Final

CHECK_SECONDS: Final = 1.0
IDLE_PART_MAX: Final = 0.1
"""Of a processor between two checks: more is work that must not be held up."""
YOUNG_OBJECTS: Final = 700
"""More than at the last look, of those that may be part of a cycle; a look at the youngest takes a
millisecond at most."""
YOUNG_COLLECTIONS: Final = 10
"""Then those that lived through them are looked at as well: 5 ms."""
NEVER: Final = 1_000_000_000
GROWTH_OBJECTS_MAX: Final = 250_000
"""Since the last look at all, so many may come before the next, whoever waits: some 8,000
connections, if each left all that it consists of."""


def grown() -> int:
    """How many more objects, at least, there are than at the last look at all of them."""
    _, middle, old = gc.get_count()
    return (old * YOUNG_COLLECTIONS + middle) * YOUNG_OBJECTS


class Garbage:
    """Of one process: `start` when all is there that stays, then `check` comes again and again."""

    def __init__(self, cpu_clock: Callable[[], float] = time.process_time) -> None:
        self._cpu_clock = cpu_clock
        self._cpu_seconds = 0.0
        self._timer: asyncio.Handle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        gc.collect()
        gc.freeze()  # what is there now stays: no look at it again
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)
        self._cpu_seconds = self._cpu_clock()
        self._check_again(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(CHECK_SECONDS, self._check_in, loop)

    def _check_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self.check()
        self._check_again(loop)

    def check(self) -> None:
        """Look at everything if this is the time for it."""
        before, self._cpu_seconds = self._cpu_seconds, self._cpu_clock()
        is_idle = self._cpu_seconds - before <= IDLE_PART_MAX * CHECK_SECONDS
        objects = grown()
        if objects > GROWTH_OBJECTS_MAX or (is_idle and objects):
            gc.collect()

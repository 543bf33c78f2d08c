"""Time and messages of a simulation: an agenda of what happens when, and pipes that delay.

Nothing here waits: `Agenda.run` jumps from one moment to the next. Times are nanoseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000


class Agenda:
    """What will happen, in order; things of the same moment in the order they were asked for."""

    def __init__(self) -> None:
        self.now_ns = SECOND
        self._next: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._next, (max(when_ns, self.now_ns), self._count, what))

    def after(self, delay_ns: int, what: Callable[[], None]) -> None:
        self.at(self.now_ns + delay_ns, what)

    def run(self, until_ns: int, is_over: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to a moment, or until `is_over`; whether it was over in time."""
        while self._next and self._next[0][0] <= until_ns:
            if is_over is not None and is_over():
                return True
            self.now_ns, _, what = heapq.heappop(self._next)
            what()
        over = is_over is not None and is_over()
        if not over:
            self.now_ns = max(self.now_ns, until_ns)
        return over


class Pipe:
    """One direction of a connection: messages arrive later, in order, until it is cut."""

    def __init__(self, agenda: Agenda, random: Random, deliver: Callable[[Any], None]) -> None:
        self._agenda = agenda
        self._random = random
        self._deliver = deliver
        self._last_ns = 0
        self._closes_ns = -1

    def send(self, message: Any) -> None:
        agenda = self._agenda
        if self._closes_ns >= 0:
            return
        delay_ns = self._random.randint(20, 150) * MICROSECOND
        when_ns = self._last_ns = max(self._last_ns, agenda.now_ns + delay_ns)

        def arrive() -> None:
            if self._closes_ns < 0 or when_ns < self._closes_ns:
                self._deliver(message)

        agenda.at(when_ns, arrive)

    def cut(self) -> None:
        """What is on its way is lost."""
        self._closes_ns = self._agenda.now_ns

    def cut_somewhere(self) -> int:
        """Some of what is on its way still arrives, the rest is lost; when that is over."""
        latest_ns = max(self._last_ns, self._agenda.now_ns)
        self._closes_ns = self._random.randint(self._agenda.now_ns, latest_ns + 1)
        return self._closes_ns


class Connection:
    """Two pipes. `peer` is the client or worker, whose `received` gets what the broker sends."""

    def __init__(
        self,
        agenda: Agenda,
        random: Random,
        *,
        peer: Any,
        to_broker: Callable[[Connection, Any], None],
        to_peer: Callable[[Connection, Any], None],
    ) -> None:
        self.peer = peer
        self.is_open = True
        self.up = Pipe(agenda, random, lambda message: to_broker(self, message))
        self.down = Pipe(agenda, random, lambda message: to_peer(self, message))

    def cut(self) -> None:
        self.is_open = False
        self.up.cut()
        self.down.cut()

    def end(self) -> int:
        """Its process died: some of its last words arrive; when the last one can."""
        self.is_open = False
        self.down.cut()
        return self.up.cut_somewhere()

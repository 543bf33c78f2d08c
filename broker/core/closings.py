"""Replies that wait until workers have closed a region of GPU memory.

CUDA does not say what happens when memory is freed that another process still has open. Whoever
unregisters a region may free it after the reply; so that comes when every worker that knew the
region has closed it, or is dead, or takes longer than CLOSE_NS: one that executes closes it after.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from naiad.broker.core.events import RegionsForgotten, SendReply
from naiad.broker.core.world import SECOND_NS, World

CLOSE_NS: Final = 5 * SECOND_NS
"""How long a reply waits for workers that execute something long."""

Opened = tuple[int, int]
"""(slot, region) that a worker was told to forget."""


class _Waiting(NamedTuple):
    session: int
    call: int
    result: Any
    until_ns: int
    opened: set[Opened]


class Closings:
    """Replies that are owed, each with the workers it waits for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[_Waiting] = []

    def reply(self, session: int, call: int, result: Any, opened: set[Opened]) -> None:
        """Answer this call once nobody has any of these open."""
        until_ns = self._world.now_ns + CLOSE_NS
        self._waiting.append(_Waiting(session, call, result, until_ns, opened))
        if opened:
            self._world.at(until_ns, self.look)
        self.look()

    def forgotten(self, event: RegionsForgotten) -> None:
        for waiting in self._waiting:
            waiting.opened.difference_update((event.slot, ident) for ident in event.ids)
        self.look()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def look(self) -> None:
        """Send what need not wait any longer."""
        world = self._world
        rest = []
        for waiting in self._waiting:
            is_open = any(slot in world.slots for slot, _ in waiting.opened)
            if is_open and world.now_ns < waiting.until_ns:
                rest.append(waiting)
            else:
                reply = SendReply(waiting.session, waiting.call, None, waiting.result)
                world.actions.append(reply)
        self._waiting = rest

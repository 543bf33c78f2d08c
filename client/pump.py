"""Looks after submitted requests that nobody waits for, so that their callbacks run all the same.

Owns one daemon thread, which exists only while futures from `submit` are unanswered. It drives the
socket when no other thread did for a moment, and steps aside as soon as one wants to. Blocking
calls never start it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from naiad.client.futures import Wish

if TYPE_CHECKING:
    from naiad.client.blocking import BlockingDriver

TICK_S: Final = 0.001
"""How long submitted requests may lie around before the pump takes care of them."""
TICK_S_MAX: Final = 0.02
"""How often it looks while other threads drive the socket."""
IDLE_TICKS_MAX: Final = 25
"""It ends when nothing was unanswered for so many looks."""


class Pump:
    """`start` under the lock of its owner; it ends by itself."""

    def __init__(self) -> None:
        self.is_running = False

    def start(self, owner: BlockingDriver) -> None:
        if not self.is_running:
            self.is_running = True
            threading.Thread(
                target=self._run, args=(owner,), name="naiad-client-pump", daemon=True
            ).start()

    def _run(self, owner: BlockingDriver) -> None:
        idle_ticks = 0
        tick_s = TICK_S
        while idle_ticks < IDLE_TICKS_MAX:
            turns = owner.turns
            time.sleep(tick_s)
            if owner.turns != turns:  # others do the work
                idle_ticks = 0
                tick_s = min(tick_s * 2, TICK_S_MAX)
            elif owner.lead_errand(Wish()):
                idle_ticks = 0
                tick_s = TICK_S
            else:
                idle_ticks += 1
        owner.pump_ended()

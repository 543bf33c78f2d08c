"""Whether there is a broker to work for, and for how long to wait when there is none. Pure.

Time is an argument, in seconds of one clock.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

BROKER_ABSENCE_MAX_S: Final = 60.0
"""How long a worker keeps its model loaded for a broker that may come back."""
WELCOME_WAIT_MAX_S: Final = 10.0
"""A connection on which hello was said and nothing came back is tried anew after this time."""


class Verdict(Enum):
    """What a worker does about a broker that is silent."""

    WAIT = "wait"
    CONNECT_ANEW = "connect anew"
    GIVE_UP = "give up"


class BrokerPresence:
    """`said_hello` and `was_welcomed` tell it what happens; `verdict` what to do meanwhile."""

    def __init__(self, now: float, absence_max_s: float = BROKER_ABSENCE_MAX_S) -> None:
        self.is_welcomed = False
        self._absence_max_s = absence_max_s
        self._absent_since = now
        self._hello_at = now

    def said_hello(self, now: float) -> bool:
        """There is a new connection; True when the one before had been a good one."""
        had_been_good, self.is_welcomed = self.is_welcomed, False
        if had_been_good:
            self._absent_since = now
        self._hello_at = now
        return had_been_good

    def was_welcomed(self) -> None:
        self.is_welcomed = True

    def absence_s(self, now: float) -> float:
        return 0.0 if self.is_welcomed else now - self._absent_since

    def verdict(self, now: float, *, is_connected: bool) -> Verdict:
        """What to do about a broker that has not said welcome."""
        if self.absence_s(now) > self._absence_max_s:
            return Verdict.GIVE_UP
        if is_connected and now - self._hello_at > WELCOME_WAIT_MAX_S:
            return Verdict.CONNECT_ANEW
        return Verdict.WAIT

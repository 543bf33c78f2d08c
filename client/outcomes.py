"""What came becomes the outcome of who waits for it: futures, wishes, and who leads for others.

Owns what is not handed on yet: completions of the driver, wishes; callbacks.py runs what it calls.
Its methods are called by who drives the socket, under its lock; it does no I/O.
"""

from __future__ import annotations

import time
from typing import Any, Final

from naiad.client.callbacks import Callbacks
from naiad.client.calls import Completion
from naiad.client.control import parsed_reply
from naiad.client.driver import Driver
from naiad.client.followers import Followers
from naiad.client.futures import CANCELLED, DONE, PENDING, Future, Wish
from naiad.client.memory import RegistrationToken
from naiad.client.packing import Request
from naiad.protocol.errors import NaiadError

_now_ns: Final = time.monotonic_ns


class Outcomes:
    """Completes what the driver has heard of, and wakes the followers that wait for it."""

    def __init__(self, driver: Driver, followers: Followers) -> None:
        self._driver = driver
        self._followers = followers
        self.completions: list[Completion] = []
        self.callbacks: Final = Callbacks()
        self.wishes: list[Wish] = []
        self.errand: Wish | None = None
        """Set while a thread leads that others need not wait for (see pump.py)."""

    def settle(self) -> None:
        """Complete futures. Interrupted, it can be done again: a done future stays as it is."""
        called = self.callbacks.called
        for token, error, answer, frames, request in self.completions:
            if token.state is PENDING:
                if answer is not None:
                    if request is None:
                        token.outcome = answer
                        token.frames = frames
                    else:
                        token.outcome = self._driver.memory.result(request, answer, frames)
                elif error is not None:
                    if request is not None and self._again(token, request, error):
                        continue
                    token.outcome = error
                else:
                    token.outcome = parsed_reply(frames)
                if token.callbacks is not None:
                    called.append(token)
                token.state = DONE
            elif error is not None and isinstance(token, RegistrationToken):
                self._driver.memory.refused(error)
            elif answer is not None and token.state is CANCELLED:
                self._driver.session.leases.give_back(answer)
            if token.tickets is not None:
                self._followers.wake(token)
        self.completions.clear()
        if self.wishes:
            self._grant()
        if self.errand is not None and not self._driver.session.unanswered:
            self.end_errand()

    def end_errand(self) -> bool:
        """Whoever leads for others may leave; whether that is news."""
        errand = self.errand  # its leader forgets it without the lock
        if errand is None or errand.state is not PENDING:
            return False
        errand.state = DONE
        return True

    def _again(self, future: Future[Any], request: Request, fault: NaiadError) -> bool:
        """Send a request inline whose shared memory the server did not take."""
        parts = self._driver.memory.inline_again(request, fault)
        ident = self._driver.session.submit(parts, future, _now_ns()) if parts is not None else 0
        if ident:
            future.id = ident
        return ident > 0

    def _grant(self) -> None:
        session = self._driver.session
        left = []
        for wish in self.wishes:
            if wish.inline_bytes < 0 or session.has_room(wish.inline_bytes) or session.fault:
                wish.state = DONE
                self._followers.wake(wish)
            else:
                left.append(wish)
        self.wishes = left

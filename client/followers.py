"""Threads that wait while another drives the socket: each has a ticket, and one inherits the lead.

Owns the tickets. Every method is called under the lock of the driver that they wait for.
"""

from __future__ import annotations

import threading
from typing import Any

from naiad.client.futures import Future, Wish

Waitable = Future[Any] | Wish


class Followers:
    """Tickets are locks that their threads acquire twice; the second time others release them."""

    def __init__(self) -> None:
        self._tickets: dict[threading.Lock, None] = {}

    def join(self, waitable: Waitable, ticket: threading.Lock) -> None:
        """A new ticket, whose thread waits for this until it is woken."""
        ticket.acquire()
        if waitable.tickets is None:
            waitable.tickets = [ticket]
        else:
            waitable.tickets.append(ticket)
        self._tickets[ticket] = None

    def wake(self, waitable: Waitable) -> None:
        """It is done: everybody who waits for it goes on."""
        for ticket in waitable.tickets or ():
            if ticket in self._tickets:
                del self._tickets[ticket]
                ticket.release()

    def leave(self, ticket: threading.Lock) -> None:
        """Its thread waits no longer, woken or not."""
        self._tickets.pop(ticket, None)

    def wake_heir(self) -> None:
        """Nobody leads: whoever waited longest looks after the others' requests too."""
        if self._tickets:
            heir = next(iter(self._tickets))
            del self._tickets[heir]
            heir.release()

    def clear(self) -> None:
        self._tickets.clear()

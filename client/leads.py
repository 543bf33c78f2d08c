"""Who does what only one thread at a time may do: drive the socket, run callbacks.

Owns the question "is it this thread?". A lead is made anew by whoever wants one, held by `with`,
which lets go of it whatever happens, and never passed on: its thread cannot change, so it may be
asked without the lock under which it took its place. Ask one lead, read once; not the place twice.
"""

from __future__ import annotations

import threading


class Lead:
    """Made and held by the thread that has it; not held: nobody does."""

    __slots__ = ("is_held", "lock", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.lock = threading.Lock()
        self.is_held = self.lock.locked

    def is_mine(self) -> bool:
        """Whether the thread that asks holds it."""
        return self.thread == threading.get_ident() and self.lock.locked()

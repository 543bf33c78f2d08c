"""Callbacks of what is done: each is run once, by one thread at a time, without a lock.

Owns those that are still to be run, and who runs them. Whoever completes something asks for a run
after he has let go of his locks; if a thread is at it already, that one runs the new ones as well.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Final

from naiad.client.futures import LOG, Future
from naiad.client.leads import Lead

TICK_S: Final = 0.001
"""Between two looks at whether another thread has run what it began to run."""


class Callbacks:
    """`called` grows in any thread; only `run` takes from it."""

    def __init__(self) -> None:
        self.called: deque[Future[Any]] = deque()
        """Done, and their callbacks are still to be run."""
        self._lock = threading.Lock()
        self._lead = Lead()

    @property
    def is_running(self) -> bool:
        """Whether some thread runs callbacks: it sees to all that are called before it ends."""
        return self._lead.is_held()

    @property
    def is_running_here(self) -> bool:
        """Whether this thread is inside a callback."""
        return self._lead.is_mine()

    def run(self) -> None:
        """Until none is left, unless a thread (maybe this one, further out) is at it."""
        while self.called:  # once more after each run: somebody may have relied on it until then
            lead = Lead()
            with lead.lock:
                with self._lock:
                    if self._lead.is_held():
                        return
                    self._lead = lead
                self._run()

    def finish(self, deadline_ns: int) -> bool:
        """Have all run that are called, here or in the thread that is at it; 0: however long it
        takes. False: there were none, not all in time, or it is this thread that is at it."""
        if not self.called or self.is_running_here:
            return False
        while self.called:
            self.run()
            if self.called:
                if deadline_ns and time.monotonic_ns() >= deadline_ns:
                    return False
                time.sleep(TICK_S)
        return True

    def _run(self) -> None:
        called = self.called
        while called:
            future = called[0]
            callbacks, future.callbacks = future.callbacks, None
            for callback in callbacks or ():
                try:
                    callback(future)
                except Exception:
                    LOG.exception("exception in a callback of %r", future)
            called.popleft()

    def after_fork(self) -> None:
        """In a child process: who ran callbacks in the parent, other than this thread, is gone."""
        self._lock = threading.Lock()
        if not self.is_running_here:
            self._lead = Lead()

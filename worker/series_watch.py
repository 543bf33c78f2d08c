"""That nobody waits for a long execution: results before it leave, what is behind it goes back.

Short executions come in series, and their results leave together. Whether one is long is known
only while it runs, when the main thread can do nothing: this thread looks then. It acts under the
transport's lock, which the main thread lets go of while it runs the model's code; a model that
never lets go of the interpreter's lock keeps it out as well. Asleep while nothing is executed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Final

HELD_S: Final = 0.001
"""So long results may wait for others, and batches for an execution, while the worker is busy."""
LOOK_S_MAX: Final = 0.01
"""Between two looks at an execution that goes on and on; what came meanwhile waited that long."""
LOOK_SHARE: Final = 0.25
"""Of an execution's time so far, until the next look at it."""
IDLE_LOOKS_MAX: Final = 20
"""In a row, at a worker that has executed nothing since; then the next execution wakes it."""


class SeriesWatch:
    """`look` is called under the lock while the model's code runs; it tells for how long it has."""

    def __init__(self, lock: threading.Lock, look: Callable[[], float]) -> None:
        self._lock = lock
        self._look = look
        self._executions = 0
        self._awake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """An execution begins; the caller holds the lock."""
        self._executions += 1
        if not self._awake.is_set():
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="series", daemon=True)
                self._thread.start()
            self._awake.set()

    def close(self) -> None:
        """It never looks again; the caller holds the lock."""
        self._is_closed = True

    def _run(self) -> None:
        seen = idle = 0
        pause_s = HELD_S
        while True:
            self._awake.wait()
            sleep(pause_s)
            pause_s = HELD_S
            if self._lock.acquire(blocking=False):
                try:
                    if self._is_closed:
                        return
                    pause_s = min(max(HELD_S, LOOK_SHARE * self._look()), LOOK_S_MAX)
                finally:
                    self._lock.release()
                idle = 0
            elif self._executions != seen:
                idle = 0
            else:
                idle += 1
            seen = self._executions
            if idle >= IDLE_LOOKS_MAX:
                idle = 0
                self._awake.clear()
                if self._executions != seen:  # `begin` may have found it awake still
                    self._awake.set()

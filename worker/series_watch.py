"""That nobody waits for a long execution: results before it leave, what is behind it goes back.

Short executions come in series, and their results leave together. Whether one is long is known
only while it runs, when the main thread can do nothing: this thread looks every millisecond then.
It acts under the transport's lock, which the main thread lets go of while it runs the model's code;
a model that never lets go of the interpreter's lock keeps it out as well. Asleep without a series.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Final

HELD_S: Final = 0.001
"""So long results may wait for others, and batches for an execution, while the worker is busy."""


class SeriesWatch:
    """`look` is called under the lock while something is to be watched; False ends it."""

    def __init__(self, lock: threading.Lock, look: Callable[[], bool]) -> None:
        self._lock = lock
        self._look = look
        self._begun = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """There is something to watch; the caller holds the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="series", daemon=True)
            self._thread.start()
        if not self._begun.is_set():
            self._begun.set()

    def end(self) -> None:
        """There is nothing any more; the caller holds the lock."""
        self._begun.clear()

    def close(self) -> None:
        """It never looks again; the caller holds the lock."""
        self._is_closed = True

    def _run(self) -> None:
        while True:
            self._begun.wait()
            sleep(HELD_S)
            if not self._begun.is_set():
                continue
            with self._lock:
                if self._is_closed:
                    return
                if self._begun.is_set() and not self._look():
                    self._begun.clear()

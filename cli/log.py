"""The log of `naiad serve`: lines to stderr or a file, from a thread, so that nothing waits for it.

A terminal that was stopped with Ctrl-S, a full disk, a reader that sleeps: the thread waits, the
supervisor does not. The buffer is bounded; what does not fit is counted and reported. O_NONBLOCK is
no way out: it would be set on the terminal that we share with the shell.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import Final

from naiad.config.log_levels import INITIAL
from naiad.config.log_lines import level_of, pid_of, start
from naiad.protocol.messages import LogLevels

BUFFER_LINES_MAX: Final = 10_000
CLOSE_SECONDS_MAX: Final = 2.0
RETRY_SECONDS: Final = 1.0
STDERR: Final = 2


class LogWriter:
    """Writes lines in order. `path` None means stderr. `start`, then `write`, then `close`."""

    def __init__(self, path: str | None = None, levels: LogLevels = INITIAL) -> None:
        self.path = path
        self.levels = levels
        """What is written, and how; the broker says when it changes. Children obey it themselves,
        only their form is decided here."""
        self._descriptor = STDERR
        self._lines: deque[bytes] = deque()
        self._lost = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="naiad-log", daemon=True)

    def start(self) -> None:
        """Raises OSError when the file cannot be opened for appending."""
        if self.path is not None:
            self._descriptor = _opened(self.path)
        self._thread.start()

    def write(self, text: str) -> None:
        """Hand over one line, which gets the time in front; never blocks.

        Over BUFFER_LINES_MAX the line is counted as lost.
        """
        self._write(level_of(text), text)

    def event(self, text: str) -> None:
        """A line of the supervisor's own: what happens to processes is a warning."""
        if self.levels.warning:
            self._write("warning", f"supervisor {text}")

    def _write(self, level: str, text: str) -> None:
        self.show(f"{start(self.levels.format, level, pid_of(text, os.getpid()))}{text}")

    def show(self, text: str) -> None:
        """Text for a person, as it is: a table, a greeting."""
        with self._changed:
            if len(self._lines) >= BUFFER_LINES_MAX:
                self._lost += 1
                return
            self._lines.append(f"{text}\n".encode("utf-8", "replace"))
            self._changed.notify()

    def reopen(self) -> None:
        """After a rotation: the path is opened anew. Raises OSError and keeps the old file."""
        if self.path is None:
            return
        fresh = _opened(self.path)
        # dup2 replaces the file below the writing thread, atomically.
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)

    def close(self) -> None:
        """Write what is left, for at most CLOSE_SECONDS_MAX; a blocked reader loses it."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS_MAX)
        if self.path is not None and not self._thread.is_alive():
            os.close(self._descriptor)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._lost and not self._is_closing:
                    self._changed.wait()
                if not self._lines and not self._lost:
                    return
                lines, self._lines = self._lines, deque()
                lost, self._lost = self._lost, 0
            if lost:
                lines.append(b"(%d log lines lost: they could not be written in time)\n" % lost)
            if self._written(b"".join(lines)):
                continue
            # The disk is full or the reader is gone: say how much is missing when it works again.
            with self._changed:
                if self._is_closing:
                    return
                self._lost += lost + len(lines)
                self._changed.wait(RETRY_SECONDS)

    def _written(self, content: bytes) -> bool:
        view = memoryview(content)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # somebody made our stderr non-blocking, and it is full
                select.select([], [self._descriptor], [], RETRY_SECONDS)
            except OSError:
                return False
        return True


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

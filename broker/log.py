"""Log lines that never make the broker wait: a bounded buffer in front of a pipe.

A reader that stops (a stopped supervisor) blocked `print` for seconds; here lines are dropped and
counted instead.
"""

from __future__ import annotations

import os
import select
import traceback
from collections import deque
from typing import Final

from naiad.config.log_levels import INITIAL, NUMBERS, shows
from naiad.config.log_lines import start

LINES_MAX: Final = 2000
TRACEBACK_FRAMES_MAX: Final = 12
TRACEBACK_LINES_MAX: Final = 60
"""With the tracebacks of what it was raised from; the last are the ones that tell."""
LINE_BYTES_MAX: Final = 4000
"""Less than PIPE_BUF: a pipe that polls writable takes it without blocking."""


class Log:
    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self.levels = INITIAL
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, level: str, text: str) -> None:
        """One line: time, level, text. Control characters and line ends become spaces.

        Nothing for a level that is switched off.
        """
        if not shows(self.levels, NUMBERS[level]):
            return
        clean = "".join(char if char.isprintable() else " " for char in text)
        line = f"{start(self.levels.format, level, os.getpid())}{level.upper()} broker: {clean}"
        if len(self._lines) >= LINES_MAX:
            self._dropped += 1
            return
        self._lines.append(line.encode("utf-8", "replace")[:LINE_BYTES_MAX] + b"\n")
        self.flush()

    def fault(self, what: str, raised: Exception) -> None:
        """A fault of ours that ended nothing but `what`: a line, and the traceback's after it."""
        self.write("error", f"{what} failed by a fault of the broker itself; please report it:")
        text = "".join(traceback.format_exception(raised, limit=-TRACEBACK_FRAMES_MAX))
        for line in text.splitlines()[-TRACEBACK_LINES_MAX:]:
            self.write("error", f"  {line}")

    def flush(self) -> None:
        """Write what the reader takes now."""
        while self._lines:
            if not self._poll.poll(0):
                return
            line = self._lines.popleft()
            if self._dropped and not self._lines:
                line += f"{self._dropped} log lines were dropped: nobody read them\n".encode()
                self._dropped = 0
            try:
                os.write(self._descriptor, line)
            except OSError:
                self._dropped += 1  # nobody reads any more
                return

    @property
    def is_waiting(self) -> bool:
        return bool(self._lines)

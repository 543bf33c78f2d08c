"""The worker's log: one line each on stderr, prefixed, never blocking, never unbounded.

A supervisor that does not read its pipe must not stop a model: a line that cannot be written at
once is dropped and counted. A model that fails at every request must not fill a disk: tracebacks
are limited per second, and what was left out is said.
"""

from __future__ import annotations

import logging
import os
import select
import time
from typing import Final

from naiad.config.log_levels import INITIAL, shows
from naiad.worker.exception_text import described, traceback_text

LINE_BYTES_MAX: Final = 4096
"""PIPE_BUF: a pipe that polls as writable takes this much without blocking, and in one piece."""
TRACEBACKS_PER_SECOND_MAX: Final = 10
TRACEBACK_LINES_MAX: Final = 60
STDERR: Final = 2


class Log:
    """Writes `naiad-worker[name] text` lines; `name` changes when the slot gets an instance."""

    def __init__(self, name: str, descriptor: int = STDERR) -> None:
        self.name = name
        self.levels = INITIAL
        """What is written; the broker says when it changes."""
        self.dropped_lines = 0
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._window = 0
        self._tracebacks = 0
        self._hidden = 0

    def line(self, text: str, number: int = logging.INFO) -> None:
        """Write one line (line breaks in the text are shown as a bar), if its level is shown."""
        if not shows(self.levels, number):
            return
        if self.dropped_lines and self._write(f"{self.dropped_lines} lines lost before this one"):
            self.dropped_lines = 0
        if not self._write(text.replace("\n", " | ")):
            self.dropped_lines += 1

    def failure(self, text: str, fault: BaseException) -> None:
        """A line and the traceback below it, as long as there are not too many of them."""
        second = int(time.monotonic())
        if second != self._window:
            if self._hidden:
                self.line(f"{self._hidden} more failures like the ones above are not shown")
            self._window, self._tracebacks, self._hidden = second, 0, 0
        if self._tracebacks >= TRACEBACKS_PER_SECOND_MAX:
            self._hidden += 1
            return
        self._tracebacks += 1
        self.line(f"error: {text}", logging.ERROR)
        for line in traceback_text(fault).splitlines()[-TRACEBACK_LINES_MAX:]:
            self.line(f"  {line}", logging.ERROR)

    def _write(self, text: str) -> bool:
        if not self._poll.poll(0):
            return False
        line = f"naiad-worker[{self.name}] {text}".encode(errors="backslashreplace")
        try:
            os.write(self._descriptor, line[: LINE_BYTES_MAX - 1] + b"\n")
        except OSError:
            return False
        return True


class LogHandler(logging.Handler):
    """Brings the lines of Python's logging (shm's warnings, libraries') into the worker's log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except BaseException as fault:  # arguments that do not fit, or one whose __str__ raises
            place = f"{record.pathname}:{record.lineno}"
            text = f"a message from {place} cannot be shown: {described(fault)}"
        self._log.line(f"{record.levelname.lower()}: {text}", record.levelno)

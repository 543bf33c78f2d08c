"""Children under the supervisor's eyes: what they write goes to the log, their end is told once.

Owns the places of children's pidfds and pipes in the selector; starts and signals nobody, and
decides nothing.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Final

from naiad.cli.children import Child
from naiad.cli.log import LogWriter

READS_PER_TURN_MAX: Final = 16


class Watch:
    """`add` when a child has started; `ended` from its `on_exit`."""

    def __init__(self, selector: selectors.BaseSelector, log: LogWriter) -> None:
        self._selector = selector
        self._log = log

    def add(self, child: Child, on_exit: Callable[[], None]) -> None:
        """The selector's keys carry what is to be called."""
        read = selectors.EVENT_READ
        self._selector.register(child.output_fd, read, lambda: self._read_output(child))
        self._selector.register(child.pidfd, read, on_exit)

    def ended(self, child: Child) -> int:
        """Take a dead child out of everything; its status."""
        status = child.reap()
        now_ns = time.monotonic_ns()
        for _ in range(READS_PER_TURN_MAX):  # the last words; they are often the reason
            content = child.read()
            if not content:
                break
            self._write(child.output.feed(content, now_ns))
        self._write(child.output.close(now_ns))
        for descriptor in (child.pidfd, child.output_fd):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        child.close()
        return status

    def _read_output(self, child: Child) -> None:
        content = child.read()
        if content is None:
            return
        if content:
            self._write(child.output.feed(content, time.monotonic_ns()))
        else:  # it closed its output, which is not its end: stop listening
            self._selector.unregister(child.output_fd)

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self._log.write(line)


def last_words(child: Child) -> str:
    """What it wrote last, in brackets; nothing if it wrote nothing."""
    return f" ({child.output.last_line})" if child.output.last_line else ""

"""Signals of the broker: the handler only writes to a pipe, the loop reacts.

The first TERM or INT drains, the second one exits at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import Final

READ_BYTES: Final = 64
HANDLED: Final = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """`descriptor` is readable when a signal came."""

    def __init__(self) -> None:
        self.descriptor = -1
        self._write = -1
        self._count = 0

    def start(self) -> None:
        self.descriptor, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, self._ignore)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.descriptor)
        os.close(self._write)

    def taken(self) -> list[bool]:
        """For each signal that came: whether it means to exit at once."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.descriptor, READ_BYTES)
        found = []
        for number in data:
            if number in HANDLED:
                self._count += 1
                found.append(self._count > 1)
        return found

    @staticmethod
    def _ignore(number: int, frame: FrameType | None) -> None:
        """The wake-up descriptor has it already."""

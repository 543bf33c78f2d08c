"""TERM and INT, seen at once even while the model is deep in C code; and the end of the grace.

The C handler writes the signal's number into a pipe; a thread that sleeps on that pipe reacts: the
first one asks the loop to drain, the second one, or the end of the grace, ends the process.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from time import monotonic
from typing import Final

from naiad.worker.exit_codes import ExitCode
from naiad.worker.log import Log

TERM_GRACE_S: Final = 30.0
"""How long a worker may take after TERM; broker and supervisor have their own, shorter ones."""
_NUDGE: Final = b"\0"


class StopSignal:
    """`asked` turns true once; `wake_descriptor` is readable when the loop should look."""

    def __init__(self, log: Log, *, grace_s: float = TERM_GRACE_S, ignore_int: bool) -> None:
        self.asked = False
        self.grace_s = grace_s
        self._log = log
        self._ignore_int = ignore_int
        self._deadline: float | None = None
        self._signals, self._signals_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.wake_descriptor, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self) -> None:
        """Install the handlers; main thread only."""
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _seen_by_thread)
        signal.signal(
            signal.SIGINT,  # Ctrl-C goes to the whole process group: a supervisor sends TERM
            signal.SIG_IGN if self._ignore_int else _seen_by_thread,
        )
        threading.Thread(target=self._watch, name="stop-signal", daemon=True).start()

    def start_grace(self, seconds: float) -> None:
        """End the process `seconds` from now, unless it ended by itself before."""
        self._deadline = monotonic() + seconds
        os.write(self._signals_in, _NUDGE)

    def wake(self) -> None:
        """Make `wake_descriptor` readable, from any thread."""
        with suppress(BlockingIOError):  # full: it is readable already
            os.write(self._wake_in, _NUDGE)

    def wait(self, seconds: float) -> bool:
        """Sleep; True, and early, when a stop was asked for."""
        deadline = monotonic() + seconds
        while not self.asked and (left := deadline - monotonic()) > 0:
            select.select([self.wake_descriptor], [], [], left)
        return self.asked

    def _watch(self) -> None:
        while True:
            deadline = self._deadline
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if not select.select([self._signals], [], [], left)[0]:
                self._log.line("the grace is over, exits with work undone")
                os._exit(ExitCode.STOPPED_NOW)
            for number in os.read(self._signals, 64):
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._on_signal()

    def _on_signal(self) -> None:
        if self.asked:
            self._log.line("second signal, exits now")
            os._exit(ExitCode.STOPPED_NOW)
        self.asked = True
        self._deadline = monotonic() + self.grace_s
        self.wake()


def _seen_by_thread(_number: int, _frame: object) -> None:
    """The wake-up pipe has told the thread already; a handler must exist for that."""

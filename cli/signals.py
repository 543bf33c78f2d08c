"""Signals as bytes in a pipe: the handler does nothing, the loop reads and reacts."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Final, Self

READ_BYTES: Final = 256


class SignalPipe:
    """As a context manager: the signals only write to `descriptor`; afterwards all is as before."""

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self.descriptor, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._signals = signals
        self._previous: dict[signal.Signals, object] = {}
        self._previous_descriptor = -1

    def __enter__(self) -> Self:
        # A full pipe loses nothing that matters: there are signals in it to react to.
        self._previous_descriptor = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, _ignore) for number in self._signals}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._previous_descriptor)
        os.close(self.descriptor)
        os.close(self._write_end)

    def read(self) -> list[signal.Signals]:
        """The signals that came, in order. Only when `descriptor` is readable."""
        return [signal.Signals(number) for number in os.read(self.descriptor, READ_BYTES)]


def _ignore(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN: an ignored signal would not be written to the pipe."""

"""A timerfd in absolute CLOCK_MONOTONIC: poll() counts in milliseconds, deadlines do not."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from naiad.broker.core.deadlines import NEVER_NS

_CLOCK_MONOTONIC: Final = 1
_TFD_NONBLOCK: Final = 0o4000
_TFD_CLOEXEC: Final = 0o2000000
_TFD_TIMER_ABSTIME: Final = 1


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """Readable when the armed time has come. Re-armed (8 µs) only when that changes something."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = -1
        self._armed_ns = NEVER_NS
        self._spec = _Itimerspec(0, 0, 0, 0)

    def start(self) -> None:
        self.descriptor = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def close(self) -> None:
        os.close(self.descriptor)

    def arm(self, deadline_ns: int) -> None:
        """Wake at the deadline at the latest; an earlier wake-up that is already set stays."""
        if deadline_ns >= self._armed_ns:
            return
        self._armed_ns = deadline_ns
        at_ns = max(deadline_ns, 1)
        self._spec.value_s, self._spec.value_ns = divmod(at_ns, 1_000_000_000)
        spec = ctypes.byref(self._spec)
        if self._libc.timerfd_settime(self.descriptor, _TFD_TIMER_ABSTIME, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def fired(self) -> None:
        """Take note that it was readable."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return
        self._armed_ns = NEVER_NS

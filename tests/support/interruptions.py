"""KeyboardInterrupt at a chosen step of the client's code, as a signal could bring it there.

CPython acts on a signal only behind certain instructions; an exception raised elsewhere would break
what no signal can (the end of a `with` statement, for one).
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

CHECKED_AFTER = (
    "RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD",
    "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
)  # fmt: skip


class Interrupter:
    """Calls a function and interrupts it after `step` such instructions of naiad.client."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.where = ""
        """Where it was interrupted; empty: it came to its end before."""
        self._last: dict[FrameType, int] = {}

    def call(self, function: Callable[[], Any]) -> None:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            function()
        except KeyboardInterrupt:
            if not self.where:
                raise
        finally:
            sys.settrace(before)
            self._last.clear()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("naiad.client") or frame.f_code.co_name == "__del__":
            return None  # exceptions in __del__ go nowhere
        frame.f_trace = self._step  # before the next line, which asks it from Python 3.13 on
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "opcode":
            return self._step
        last = self._last.get(frame)
        self._last[frame] = frame.f_lasti
        # None: RESUME, at the beginning of a function, has no event of its own.
        if last is None or dis.opname[frame.f_code.co_code[last]] in CHECKED_AFTER:
            self.left -= 1
            if self.left < 0:
                self.where = f"{frame.f_code.co_qualname} line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self._step

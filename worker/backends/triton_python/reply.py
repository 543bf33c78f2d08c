"""What a model sends for one request through its response sender, from whatever thread.

Owns the rules of an ordinary model: one response, then the final flag, together or apart.
"""

from __future__ import annotations

import threading
import weakref
from typing import Generic, TypeVar

from naiad.worker.backends.triton_python.errors import TritonModelException

R = TypeVar("R")

_UNABLE = "Unable to send response."


class Reply(Generic[R]):
    """Ends once: by the final flag, when its senders are let go without it, or from outside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # with an RLock: a sender may end inside of a call
        self._is_over = False
        self._is_abandoned = False
        self._senders = 0
        self.response: R | None = None

    def hold(self, sender: object) -> None:
        """Notice when the last of its senders is let go."""
        with self._changed:
            self._senders += 1
        weakref.finalize(sender, self._let_go).atexit = False

    def send(self, response: R | None, *, is_final: bool) -> None:
        """Raises TritonModelException for what an ordinary model may not do; that harms nothing."""
        with self._changed:
            if self._is_over:
                raise TritonModelException(f"{_UNABLE} Response sender has been closed.")
            if response is None and not is_final:
                raise TritonModelException(
                    f"{_UNABLE} Expected an InferenceResponse, the final flag, or both, got neither"
                )
            if response is not None and self.response is not None:
                raise TritonModelException(
                    f"{_UNABLE} A model that is not decoupled sends one response per request, and"
                    " this one was sent already"
                )
            if response is not None:
                self.response = response
            if is_final:
                self._end()

    def _let_go(self) -> None:
        with self._changed:
            self._senders -= 1
            if not self._senders and not self._is_over:
                self._is_abandoned = True
                self._end()

    def close(self) -> None:
        """Take nothing further."""
        with self._changed:
            self._end()

    def wait(self) -> str:
        """Until the end; what was wrong with it, "" for nothing."""
        with self._changed:
            while not self._is_over:
                self._changed.wait()
        if self._is_abandoned:
            return "let go of the response sender before it sent the final flag"
        return "" if self.response is not None else "sent the final flag without a response"

    def _end(self) -> None:
        self._is_over = True
        self._changed.notify_all()

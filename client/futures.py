"""What `submit` returns: the interface of concurrent.futures.Future, without a lock of its own.

A future is completed under its client's lock by whichever thread drives the socket. Waiting for it
drives the socket, which is why concurrent.futures.wait() cannot take it: use its own methods.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from naiad.client.results import InferResult
from naiad.protocol.errors import NaiadError
from naiad.protocol.messages import InferAnswer

if TYPE_CHECKING:
    from naiad.client.blocking import BlockingDriver

T = TypeVar("T")

LOG: Final = logging.getLogger("naiad.client")


class FutureState(IntEnum):
    """Moves once, from PENDING."""

    PENDING = 0
    DONE = 1
    CANCELLED = 2


PENDING: Final = FutureState.PENDING
DONE: Final = FutureState.DONE
CANCELLED: Final = FutureState.CANCELLED


class Future(Generic[T]):
    """The pending answer of a request, or of a control call."""

    __slots__ = (
        "__weakref__", "callbacks", "frames", "id", "is_call", "outcome", "owner", "state",
        "tickets",
    )  # fmt: skip

    def __init__(self, owner: BlockingDriver, is_call: bool = False) -> None:
        self.owner = owner
        self.id = 0
        self.is_call = is_call
        self.state: FutureState = PENDING
        self.outcome: Any = None
        """The answer (once it was asked for, the InferResult), a reply, or the NaiadError."""
        self.frames: Sequence[Any] = ()
        self.callbacks: list[Callable[[Future[T]], Any]] | None = None
        self.tickets: list[threading.Lock] | None = None
        """Held by threads that wait while another drives the socket; released to wake them."""

    def result(self, timeout: float | None = None) -> T:
        """The result, waiting at most `timeout` seconds for it.

        Raises what went wrong (NaiadError), TimeoutError (the request goes on) or CancelledError.
        """
        if self.state is PENDING:
            self._wait(timeout)
        outcome = self.outcome
        if type(outcome) is InferAnswer:
            outcome = self.outcome = InferResult(outcome, self.frames)
            self.frames = ()
        elif isinstance(outcome, NaiadError):
            try:
                raise outcome
            finally:
                del self, outcome  # no cycle through the traceback
        elif self.state is CANCELLED:
            raise CancelledError
        return outcome  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> NaiadError | None:
        """What went wrong, or None; waits like `result`."""
        if self.state is PENDING:
            self._wait(timeout)
        if self.state is CANCELLED:
            raise CancelledError
        return self.outcome if isinstance(self.outcome, NaiadError) else None

    def _wait(self, timeout: float | None) -> None:
        if not self.owner.wait(self, timeout):
            raise TimeoutError(f"no answer within {timeout} s; the request goes on")

    def done(self) -> bool:
        return self.state is not PENDING

    def running(self) -> bool:
        return self.state is PENDING

    def cancelled(self) -> bool:
        return self.state is CANCELLED

    def cancel(self) -> bool:
        """Give the request up; False when it is done already.

        The server drops it if it is still queued; if it executes, the result is thrown away.
        """
        return self.owner.cancel(self)

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call `callback(future)` in a thread that completes futures, or now if it is done.

        A callback may submit further requests; it must not wait for one.
        """
        if not self.owner.add_callback(self, callback):
            callback(self)

    def __repr__(self) -> str:
        return f"<Future {self.id} {self.state.name.lower()}>"


class Wish:
    """Something other than an answer that a thread waits for: room in the budgets, or progress."""

    __slots__ = ("inline_bytes", "state", "tickets")

    def __init__(self, inline_bytes: int = -1) -> None:
        self.inline_bytes = inline_bytes
        """Room for a request with so many inline bytes; -1: any completion will do."""
        self.state: FutureState = PENDING
        self.tickets: list[threading.Lock] | None = None

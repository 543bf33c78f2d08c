"""One gRPC call, from its head until its status. In the event loop of its connection.

Owns the call's deadline, its bytes in the plane's budget, and its work: a request under way or a
task. When the call is over, for whatever reason, none of these is left. What a call does with its
messages is for its kinds to say: see grpc_one_request and grpc_many_requests.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from naiad.client.requests import Buffer
from naiad.gateway.compression import InflationFault
from naiad.gateway.grpc_codec.head import (
    CODINGS,
    OK_END,
    OK_HEAD,
    Head,
    error_end,
    fault_end,
)
from naiad.gateway.grpc_codec.messages import (
    Assembler,
    MessageFault,
    framed_head,
    inflation,
)
from naiad.gateway.grpc_codec.status import Status
from naiad.gateway.grpc_method import Method
from naiad.gateway.grpc_service import Caller, unexpected
from naiad.gateway.http2.connection import Connection
from naiad.gateway.inflating import inflated_in_budget
from naiad.gateway.memory import memory_for
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.protocol.errors import Code, NaiadError

DEADLINE_SLACK_SECONDS: Final = 0.05
"""So much before a caller's deadline the queue's own timeout for it is that deadline."""


class Door(Protocol):
    """What a call needs of its connection."""

    plane: Plane
    phase: Phase
    http2: Connection

    def send_soon(self) -> None:
        """There is something in the connection's `out`."""

    def is_over(self, call: Call) -> None:
        """The call has ended."""

    def owes(self) -> None:
        """A task was made, or woken, for what has just come."""


class Asked(NamedTuple):
    """A call as it comes."""

    stream: int
    head: Head
    caller: Caller
    method: Method


class Call(ABC):
    """A call; the base of its kinds, which say what becomes of its messages."""

    def __init__(self, door: Door, asked: Asked) -> None:
        stream, head, caller, method = asked
        self._door = door
        self.stream = stream
        self.head = head
        self._method = method
        self._loop = asyncio.get_running_loop()
        self._assembler = Assembler(method.message_bytes_max, memory_for)
        self._held_bytes = 0
        self._has_sent = False
        self.is_done = False
        self._timer: asyncio.Handle | None = None
        self._deadline = 0.0
        """Of the loop's time. The timer does not tell: uvloop has none for the next millisecond."""
        if head.timeout_seconds is not None:
            self._deadline = self._loop.time() + head.timeout_seconds
            self._timer = self._loop.call_later(head.timeout_seconds, self._expired)
            caller = caller._replace(seconds_left=head.timeout_seconds)
        self.caller = caller

    # --- what comes ------------------------------------------------------------------------------

    def feed(self, data: memoryview, *, is_ended: bool) -> None:
        """More of the body."""
        size = len(data)
        try:
            if size:
                self._hold(size)
            for is_compressed, content in self._assembler.feed(data) if size else ():
                self._message(is_compressed, content)
                if self.is_done:
                    return
            if is_ended:
                if self._assembler.held_bytes:
                    raise MessageFault("the body ends in the middle of a message")
                self._ended()
        except MessageFault as fault:
            self.refuse(fault)
        except NaiadError as fault:
            self.fail(fault)

    @abstractmethod
    def _message(self, is_compressed: bool, content: Buffer) -> None:
        """A whole message came."""

    @abstractmethod
    def _ended(self) -> None:
        """The client will send nothing more."""

    def cancel(self) -> None:
        """The client does not want it any more, or is gone."""
        self._over()

    def _expired(self) -> None:
        self._timer = None
        self._end(fault_end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded", is_all=self._is_all))

    # --- what goes -------------------------------------------------------------------------------

    @property
    def _is_all(self) -> bool:
        return not self._has_sent

    def send(self, *parts: bytes | memoryview) -> int:
        """A message of the answer; how much of the answer waits for the client."""
        http2 = self._door.http2
        if not self._has_sent:
            self._has_sent = True
            http2.send_head(self.stream, OK_HEAD)
        unsent = http2.send(self.stream, framed_head(sum(map(len, parts))), *parts)
        self._door.send_soon()
        return unsent

    def succeed(self) -> None:
        if not self._has_sent:
            self._has_sent = True
            self._door.http2.send_head(self.stream, OK_HEAD)
        self._end(OK_END)

    def fail(self, error: NaiadError) -> None:
        timer = self._timer
        if (
            error.code is Code.TIMEOUT
            and timer is not None
            and self._deadline - self._loop.time() < DEADLINE_SLACK_SECONDS
        ):
            timer.cancel()  # the queue looked at the same deadline, and was first
            self._expired()
            return
        self._end(error_end(error, is_all=self._is_all))

    def refuse(self, fault: MessageFault) -> None:
        status = Status.RESOURCE_EXHAUSTED if fault.is_too_large else Status.INVALID_ARGUMENT
        self._end(fault_end(status, str(fault), is_all=self._is_all))

    def _end(self, block: bytes) -> None:
        if not self.is_done:
            self._door.http2.send_end(self.stream, block)
            self._door.send_soon()
            self._over()

    def _over(self) -> None:
        if self.is_done:
            return
        self.is_done = True
        if self._timer is not None:
            self._timer.cancel()
        self._give(self._held_bytes)
        self._stop()
        self._door.is_over(self)

    def _hold(self, size: int) -> None:
        """Until the call is over. Raises NaiadError when there is no room."""
        if self.is_done:
            raise MessageFault("the call is over")
        self._door.plane.budget.take(size)
        self._held_bytes += size

    def _give(self, size: int) -> None:
        self._held_bytes -= size
        self._door.plane.budget.give(size)

    @abstractmethod
    def _stop(self) -> None:
        """End the call's work."""

    async def _plain(self, is_compressed: bool, content: Buffer) -> Buffer:
        """A message's content, which counts as the call's. Raises MessageFault and NaiadError."""
        if not is_compressed:
            return content
        try:
            found = await inflated_in_budget(
                inflation(self.head.coding, content, self._method.message_bytes_max), self._hold
            )
        except InflationFault as fault:
            raise MessageFault(f"a message: {fault}", is_too_large=fault.is_too_large) from None
        return found


class WorkingCall(Call):
    """A call whose work is a task."""

    _task: asyncio.Task[None] | None = None

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """`work` is called by the task: one that is cancelled before has not begun anything."""
        self._task = self._loop.create_task(self._guarded(work))
        self._door.owes()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            self.succeed()
        except MessageFault as fault:
            self.refuse(fault)
        except NaiadError as error:
            self.fail(error)
        except Exception:
            self.fail(unexpected(self._method.name))

    def _stop(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()


def unknown_coding(head: Head) -> bytes | None:
    """The end of a call whose coding nobody here knows."""
    if head.coding in CODINGS:
        return None
    return fault_end(
        Status.UNIMPLEMENTED, f"unknown grpc-encoding {head.coding!r:.40}", is_all=True
    )

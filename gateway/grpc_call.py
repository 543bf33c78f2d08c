"""One gRPC call, from its head until its status. In the event loop of its connection.

Owns the call's deadline, its bytes in the plane's budget, and its work: a request under way or a
task. When the call is over, for whatever reason, none of these is left.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from naiad.gateway.calls import InferAnswer, InferCall
from naiad.gateway.compression import InflationFault
from naiad.gateway.grpc_codec.answers import encoded_answer
from naiad.gateway.grpc_codec.head import (
    CODINGS,
    OK_END,
    OK_HEAD,
    Head,
    error_end,
    fault_end,
)
from naiad.gateway.grpc_codec.messages import (
    PREFIX_BYTES,
    Assembler,
    MessageFault,
    framed_head,
    inflation,
)
from naiad.gateway.grpc_codec.status import Status
from naiad.gateway.grpc_service import Caller, call_of, unexpected
from naiad.gateway.http2.connection import Connection
from naiad.gateway.inflating import inflated_in_budget
from naiad.gateway.pending import Outcome, Pending
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.protocol.errors import Code, NaiadError

UNREAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Messages of a stream that wait to be read; beyond, its client may not send more."""
UNSENT_BYTES_MAX: Final = 1024 * 1024
"""Of a stream's answers; beyond, its writer waits."""
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


class Call(ABC):
    """A call; the base of its three kinds, which say what `begin` does with its messages."""

    def __init__(self, door: Door, stream: int, head: Head, caller: Caller, name: str) -> None:
        self._door = door
        self.stream = stream
        self.head = head
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._assembler = Assembler(door.plane.limits.body_bytes_max)
        self._held_bytes = 0
        self._has_sent = False
        self.is_done = False
        self._timer: asyncio.TimerHandle | None = None
        if head.timeout_seconds is not None:
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
    def _message(self, is_compressed: bool, content: bytes) -> None:
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

    def send(self, message: bytes) -> int:
        """A message of the answer; how much of the answer waits for the client."""
        http2 = self._door.http2
        if not self._has_sent:
            self._has_sent = True
            http2.send_head(self.stream, OK_HEAD)
        unsent = http2.send(self.stream, framed_head(len(message)), message)
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
            and timer.when() - self._loop.time() < DEADLINE_SLACK_SECONDS
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

    async def _plain(self, is_compressed: bool, content: bytes) -> bytes:
        """A message's content, which counts as the call's. Raises MessageFault and NaiadError."""
        if not is_compressed:
            return content
        limit = self._door.plane.limits.body_bytes_max
        try:
            found = await inflated_in_budget(
                inflation(self.head.coding, content, limit), self._hold
            )
        except InflationFault as fault:
            raise MessageFault(f"a message: {fault}", is_too_large=fault.is_too_large) from None
        return bytes(found)


class WorkingCall(Call):
    """A call whose work is a task."""

    _task: asyncio.Task[None] | None = None

    def start(self, work: Awaitable[None]) -> None:
        self._task = self._loop.create_task(self._guarded(work))

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
            self.succeed()
        except MessageFault as fault:
            self.refuse(fault)
        except NaiadError as error:
            self.fail(error)
        except Exception:
            self.fail(unexpected(self._name))

    def _stop(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()


class OneRequestCall(WorkingCall):
    """A call with one message. `answer` is given it and sends what it likes by `send`."""

    def __init__(
        self,
        door: Door,
        stream: int,
        head: Head,
        caller: Caller,
        name: str,
        answer: Callable[[bytes, OneRequestCall], Awaitable[None]],
    ) -> None:
        super().__init__(door, stream, head, caller, name)
        self._answer = answer
        self._request: tuple[bool, bytes] | None = None

    def feed(self, data: memoryview, *, is_ended: bool) -> None:
        self._door.http2.taken(self.stream, len(data))
        super().feed(data, is_ended=is_ended)

    def _message(self, is_compressed: bool, content: bytes) -> None:
        if self._request is not None:
            raise MessageFault("a second message in a call that has one")
        self._request = (is_compressed, content)

    def _ended(self) -> None:
        if self._request is None:
            raise MessageFault("a call without a message")
        self._begin(*self._request)
        self._request = None

    def _begin(self, is_compressed: bool, content: bytes) -> None:
        self.start(self._work(is_compressed, content))

    async def _work(self, is_compressed: bool, content: bytes) -> None:
        await self._answer(await self._plain(is_compressed, content), self)


class InferenceCall(OneRequestCall):
    """ModelInfer: without a task, which would cost as much as the rest of it."""

    _pending: Pending | None = None

    def _begin(self, is_compressed: bool, content: bytes) -> None:
        if is_compressed:
            self.start(self._work(is_compressed, content))
            return
        try:
            self._door.phase.check_open()
            call: InferCall = call_of(content, self.caller)
            self._pending = self._door.plane.start(call, self._answered)
        except NaiadError as fault:
            self.fail(fault)

    def _answered(self, outcome: Outcome) -> None:
        if self.is_done:
            return
        if isinstance(outcome, InferAnswer):
            self.send(encoded_answer(outcome))
            self.succeed()
        else:
            self.fail(outcome)

    def _stop(self) -> None:
        super()._stop()
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None


class ManyRequestsCall(WorkingCall):
    """A call with messages both ways: an asynchronous iterator of requests, with `write`."""

    def __init__(self, door: Door, stream: int, head: Head, caller: Caller, name: str) -> None:
        super().__init__(door, stream, head, caller, name)
        self._messages: deque[tuple[bool, bytes]] = deque()
        self._unread_bytes = 0
        self._untaken_bytes = 0
        """Arrived, and the client was not told that it may go on."""
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    def feed(self, data: memoryview, *, is_ended: bool) -> None:
        self._untaken_bytes += len(data)
        super().feed(data, is_ended=is_ended)
        self._take()

    def _take(self) -> None:
        if self._unread_bytes <= UNREAD_BYTES_MAX and self._untaken_bytes:
            self._door.http2.taken(self.stream, self._untaken_bytes)
            self._untaken_bytes = 0
            self._door.send_soon()

    def _message(self, is_compressed: bool, content: bytes) -> None:
        self._unread_bytes += len(content)
        self._messages.append((is_compressed, content))
        _wake(self._reader)

    def _ended(self) -> None:
        self._is_ended = True
        _wake(self._reader)

    def __aiter__(self) -> ManyRequestsCall:
        return self

    async def __anext__(self) -> bytes:
        while not self._messages:
            if self._is_ended:
                raise StopAsyncIteration
            self._reader = self._loop.create_future()
            await self._reader
        is_compressed, content = self._messages.popleft()
        self._unread_bytes -= len(content)
        # Whoever reads it counts it himself from here on.
        self._give(min(self._held_bytes, PREFIX_BYTES + len(content)))
        self._take()
        found = await self._plain(is_compressed, content)
        if is_compressed:
            self._give(len(found))
        return found

    async def write(self, message: bytes) -> None:
        """Send an item, and wait while the client takes too little."""
        if self.send(message) > UNSENT_BYTES_MAX and not self.is_done:
            self._writer = self._loop.create_future()
            await self._writer

    def drained(self) -> None:
        """The client has taken what was sent."""
        _wake(self._writer)


def unknown_coding(head: Head) -> bytes | None:
    """The end of a call whose coding nobody here knows."""
    if head.coding in CODINGS:
        return None
    return fault_end(
        Status.UNIMPLEMENTED, f"unknown grpc-encoding {head.coding!r:.40}", is_all=True
    )


def _wake(waiter: asyncio.Future[Any] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)

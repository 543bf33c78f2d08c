"""ModelStreamInfer: many requests and their answers on one stream, in order.

A request that fails is an item with an error and the stream goes on, unless its caller asked for a
status instead. Requests are read, and given to the broker, one after the other, and run side by
side; their answers wait for those before them, because every model answers once. Owns the tasks of
its requests: none outlives the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from naiad.client.requests import Buffer
from naiad.gateway.calls import InferCall
from naiad.gateway.error_text import told
from naiad.gateway.grpc_codec.answers import encoded_fault, encoded_part
from naiad.gateway.grpc_codec.wire import Parts, request_id
from naiad.gateway.grpc_service import Caller, any_call_of, unexpected
from naiad.gateway.pending import Order
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane, draining
from naiad.protocol.errors import Code, NaiadError

REQUESTS_MAX: Final = 256
"""Unanswered requests of one stream; beyond, no more are read and the client is held up."""
UNWRITTEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Answers that a client has not taken; beyond, no more of its requests are read."""

_LATE: Final = frozenset(
    {
        Code.TIMEOUT,
        Code.CANCELLED,
        Code.MODEL_ERROR,
        Code.MODEL_OUTPUT_INVALID,
        Code.WORKER_DIED,
        Code.POISON_REQUEST,
    }
)
"""Why a request fails that was taken: the item that says so is its final one, and marked so."""

Write = Callable[..., Awaitable[None]]
"""Of an item, in parts."""


class Stream:
    """One stream. `wants_status`: the first error ends it as a status, as in Triton."""

    def __init__(self, plane: Plane, phase: Phase, caller: Caller, *, wants_status: bool) -> None:
        self._plane = plane
        self._phase = phase
        self._caller = caller
        self._wants_status = wants_status
        self._order = Order()
        self._answers: asyncio.Queue[asyncio.Task[Parts] | None] = asyncio.Queue(REQUESTS_MAX)
        self._running: set[asyncio.Task[Parts]] = set()
        self._unwritten_bytes = 0
        self._was_written = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._is_reading = False
        self._is_finishing = False

    async def run(self, requests: AsyncIterator[Buffer], write: Write) -> None:
        """Until the client has closed its side and has every answer.

        Cancelling cancels every request. Raises NaiadError if a status is wanted, and Unavailable
        (draining) after `finish`.
        """
        self._phase.check_open()
        reader = self._reader = asyncio.create_task(self._read(requests))
        try:
            while (answer := await self._answers.get()) is not None:
                if answer.done():  # one of many, maybe, that waited for those before them
                    await self._plane.turns.share(owed=0)
                item = await answer
                await write(*item)
                self._unwritten_bytes -= sum(map(len, item))
                self._was_written.set()
            if self._is_finishing:
                raise draining()
            await reader
        finally:
            left = [reader, *self._running]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def finish(self) -> None:
        """Read no more, answer what was read, and end."""
        self._is_finishing = True
        if self._is_reading and self._reader is not None:
            self._reader.cancel()

    async def _read(self, requests: AsyncIterator[Buffer]) -> None:
        try:
            while not self._is_finishing:
                self._is_reading = True
                data = await anext(requests, None)
                self._is_reading = False
                if data is None:
                    return
                await self._answers.put(await self._begun(data))
                while self._unwritten_bytes > UNWRITTEN_BYTES_MAX:
                    self._was_written.clear()
                    await self._was_written.wait()
        finally:
            await self._answers.put(None)

    async def _begun(self, data: Buffer) -> asyncio.Task[Parts]:
        """The task of a request. It is read here and not there: however long that takes, those of
        one stream reach their model in their order. It is in the budget until it is answered."""
        budget = self._plane.budget
        try:
            budget.take(len(data))
        except NaiadError as fault:
            return self._started(fault, data, 0)
        try:
            await self._plane.turns.share()
            call = await self._call(data)
        except asyncio.CancelledError:
            budget.give(len(data))
            raise
        return self._started(call, data, len(data))

    async def _call(self, data: Buffer) -> InferCall | NaiadError:
        try:
            return await any_call_of(data, self._caller, self._plane.long_work)
        except NaiadError as fault:
            return fault
        except Exception:
            return unexpected("ModelStreamInfer")

    def _started(
        self, call: InferCall | NaiadError, data: Buffer, taken: int
    ) -> asyncio.Task[Parts]:
        task = asyncio.create_task(self._answer(call, data))
        self._running.add(task)
        task.add_done_callback(partial(self._ended, taken))
        return task

    def _ended(self, taken: int, task: asyncio.Task[Parts]) -> None:
        self._running.discard(task)
        self._plane.budget.give(taken)

    async def _answer(self, call: InferCall | NaiadError, data: Buffer) -> Parts:
        """The stream's item for one request, or for why it cannot be one."""
        item = await self._item(call, data)
        self._unwritten_bytes += sum(map(len, item))
        return item

    async def _item(self, call: InferCall | NaiadError, data: Buffer) -> Parts:
        if isinstance(call, NaiadError):
            return self._failed(call, data, None)
        try:
            return encoded_part(await self._plane.infer(call, self._order), is_final=True)
        except NaiadError as fault:
            return self._failed(fault, data, call)
        except Exception:
            return self._failed(unexpected("ModelStreamInfer"), data, call)

    def _failed(self, fault: NaiadError, data: Buffer, call: InferCall | None) -> Parts:
        if self._wants_status:
            raise fault
        if call is None:
            return [encoded_fault(told(fault), request_id(data))]
        model = call.model if fault.code in _LATE else ""
        return [encoded_fault(told(fault), call.id, model)]

"""The asyncio client: the same calls as `Client`, awaited. Works in any event loop (uvloop too).

Owns no thread: the loop watches the socket's descriptor. That is edge-triggered, so every turn
receives until nothing is left after whatever was sent. Requests of one iteration of the loop travel
in one message. Cancelling a task cancels its request.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections import deque
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, Unpack

import zmq

from naiad.client import control, forks
from naiad.client.arguments import (
    NO_INPUTS,
    Inputs,
    Options,
    Outputs,
    no_more_than_prepared,
    parts_of,
)
from naiad.client.calls import Ask, Calls, Completion
from naiad.client.control import Json, Operation
from naiad.client.deadlines import deadline_after
from naiad.client.driver import (
    CONNECT_TIMEOUT_S,
    Driver,
    copy_of,
    over_budget,
    timed_out_in_line,
    waits_when_full,
)
from naiad.client.memory import ClientRegion, Placement, RegistrationToken, Transport, check_size
from naiad.client.packing import Request
from naiad.client.requests import PackedInput, Prepared
from naiad.client.results import InferResult
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable

BURST_REQUESTS_MAX: Final = 8
"""So many are sent at once, without waiting for the end of the turn: the broker and a worker begin
with them while this process prepares the others. Otherwise all of them take turns on one core."""

_now_ns: Final = time.monotonic_ns


class Receiver(Protocol):
    """Takes the one outcome of a request, inside the event loop; raises nothing.

    `done` says that nobody wants it any more.
    """

    def done(self) -> bool: ...

    def set_result(self, result: InferResult, /) -> None: ...

    def set_exception(self, fault: NaiadError, /) -> None: ...


class AsyncClient:
    """A connection to one server, made at first use and made again whenever it breaks.

    Belongs to the event loop in which it is first used. Arguments as for `Client`.
    """

    def __init__(
        self,
        server: str | os.PathLike[str],
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        on_full: Literal["wait", "raise"] = "wait",
        role: str = "client",
        transport: Transport = "auto",
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self._driver = Driver(
            os.fsdecode(server), role=role, connect_timeout_s=connect_timeout_s,
            transport=transport, context=context,
        )  # fmt: skip
        self._session = self._driver.session
        self._waits_for_room = waits_when_full(on_full)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._memory = self._driver.memory
        self._driver.when_lease_ends(self._lease_ended)
        self._is_turn_due = False
        self._burst = 0
        self._sent_again: dict[asyncio.Future[Any], int] = {}
        """Ids of requests that were sent again, inline."""
        self._completions: list[Completion] = []
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        """Who waits for room, and for how many inline bytes."""
        self._watched: tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._farewell = weakref.finalize(self, self._driver.close)
        self._driver.connection.before_close(self._unwatch)
        forks.remember(self)

    # --- inference -----------------------------------------------------------------------------

    async def infer(
        self,
        model: str | Prepared,
        inputs: Inputs = NO_INPUTS,
        outputs: Outputs | None = None,
        **options: Unpack[Options],
    ) -> InferResult:
        """Ask a model and await its answer; arguments and errors as for `Client.infer`.

        Large inputs are not copied: leave them unchanged until the answer.
        """
        loop = self._attach()
        if not isinstance(model, Prepared):
            memory = self._memory
            if not memory.is_ready and memory.wants(inputs):
                await self.live()  # its name is needed for shared memory
            model = parts_of(model, inputs, outputs, options, memory)
        else:
            no_more_than_prepared(inputs, outputs, options)
        session = self._session
        if session.fault is not None:
            raise copy_of(session.fault)
        future: asyncio.Future[InferResult] = loop.create_future()
        now_ns = _now_ns() if model.tail[2] else 0
        if model.memory is not None:
            self._memory.announce(_now_ns())
        ident = 0 if self._queue else session.submit(model, future, now_ns)
        while not ident:
            await self._room(loop, model, now_ns)
            ident = session.submit(model, future, now_ns)
        if not self._is_turn_due:
            self._is_turn_due = True
            loop.call_soon(self._turn)
        try:
            return await future
        finally:
            if future.cancelled() and session.cancel(self._sent_again.pop(future, ident)):
                self._turn_soon()

    def submit(self, parts: Prepared, receiver: Receiver) -> int:
        """Ask without waiting and without a task: a gateway's way. Call it in the event loop.

        Returns the request's id for `abandon`, or 0 when the budgets have no room for it now.
        Raises RequestError for what this server takes at no time.
        """
        if self._loop is None:
            self._attach()
        session = self._session
        if session.fault is not None:
            raise copy_of(session.fault)
        now_ns = _now_ns() if parts.tail[2] or parts.memory is not None else 0
        if parts.memory is not None:
            self._memory.announce(now_ns)
        ident = 0 if self._queue else session.submit(parts, receiver, now_ns)
        if ident:
            self._burst += 1
            if self._burst >= BURST_REQUESTS_MAX:
                self._burst = 0
                self._driver.send()
            self._turn_soon()
        return ident

    def abandon(self, ident: int) -> None:
        """Nobody waits for this request any more; its receiver says that it is done."""
        if self._session.cancel(ident):
            self._turn_soon()

    def share(
        self, inputs: tuple[PackedInput, ...]
    ) -> tuple[tuple[PackedInput, ...], Placement | None]:
        """The inputs for `checked`, large ones in shared memory as far as there is any; and what
        keeps that memory alive."""
        bytes_min = self._memory.bytes_min
        for item in inputs:
            if item[6] >= bytes_min and item[7] is not None:
                return self._memory.placed(inputs)
        return inputs, None

    async def _room(self, loop: asyncio.AbstractEventLoop, parts: Prepared, begun_ns: int) -> None:
        """Until the budgets have room for these parts; first come, first served.

        `begun_ns`: since when its timeout counts; 0: it has none.
        """
        if not self._waits_for_room:
            raise over_budget(self._session)
        granted: asyncio.Future[None] = loop.create_future()
        self._queue.append((granted, parts.inline_bytes))
        left_s = (begun_ns + parts.tail[2] * 1000 - _now_ns()) / 1e9 if begun_ns else None
        try:
            await asyncio.wait_for(granted, left_s) if begun_ns else await granted
        except asyncio.CancelledError:
            self._grant()  # what this task was promised, another may have
            raise
        except TimeoutError:
            self._grant()
            raise timed_out_in_line(self._session) from None
        if self._session.fault is not None:
            raise copy_of(self._session.fault)

    def _grant(self) -> None:
        """Wake those at the head of the queue that may submit now."""
        session = self._session
        count = bytes_ = 0
        while self._queue:
            granted, inline_bytes = self._queue[0]
            if not granted.done():
                bytes_ += inline_bytes
                if not session.fault and not session.has_room(bytes_, count):
                    return
                count += 1
                granted.set_result(None)
            self._queue.popleft()

    # --- the event loop --------------------------------------------------------------------------

    def _attach(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RequestError(
                    "this AsyncClient belongs to the event loop in which it was first used, and was"
                    " now used in another; make one in each loop (asyncio.run() makes a new one)",
                    code=Code.UNSUPPORTED,
                )
            self._loop = loop
        return loop

    def _turn_soon(self) -> None:
        if not self._is_turn_due and self._loop is not None:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Send what is due, take in what came, and see to it that the next turn comes in time."""
        self._is_turn_due = False
        self._burst = 0
        driver = self._driver
        completions = self._completions
        driver.turn(_now_ns(), completions)
        if completions:
            self._settle()
        if not driver.is_drained:
            self._turn_soon()
        if not self._watched and driver.connection.is_open:
            self._watch()
        deadline_ns = driver.deadline_ns()
        if deadline_ns != self._timer_ns:
            self._set_timer(deadline_ns)

    def _settle(self) -> None:
        memory = self._memory
        for token, error, answer, frames, request in self._completions:
            outcome: Any = error
            if token.done():
                if answer is not None:
                    self._session.leases.give_back(answer)
                elif error is not None and isinstance(token, RegistrationToken):
                    memory.refused(error)
                continue
            if answer is not None:
                if request is None:
                    token.set_result(InferResult(answer, frames))
                    continue
                outcome = memory.result(request, answer, frames)
            elif error is None:
                outcome = control.parsed_reply(frames)
            elif request is not None and self._again(token, request, error):
                continue
            if isinstance(outcome, NaiadError):
                token.set_exception(outcome)
            else:
                token.set_result(outcome)
        self._completions.clear()
        if self._queue:
            self._grant()

    def _again(self, future: asyncio.Future[Any], request: Request, fault: NaiadError) -> bool:
        """Send a request inline whose shared memory the server did not take."""
        parts = self._memory.inline_again(request, fault)
        ident = self._session.submit(parts, future, _now_ns()) if parts is not None else 0
        if ident and isinstance(future, asyncio.Future):
            self._sent_again[future] = ident
            future.add_done_callback(lambda done: self._sent_again.pop(done, None))
        return ident > 0

    def _lease_ended(self) -> None:
        """In any thread, maybe inside the garbage collector."""
        loop = self._loop
        if loop is not None and not self._is_turn_due and not loop.is_closed():
            loop.call_soon_threadsafe(self._turn_soon)

    def _monitor(self) -> None:
        self._driver.watch()
        self._turn()

    def _watch(self) -> None:
        assert self._loop is not None
        connection = self._driver.connection
        self._watched = (connection.descriptor, connection.monitor_descriptor)
        self._loop.add_reader(connection.descriptor, self._turn)
        self._loop.add_reader(connection.monitor_descriptor, self._monitor)
        self._turn_soon()  # what came before the descriptors were watched gives no edge

    def _unwatch(self) -> None:
        watched, self._watched = self._watched, ()
        if self._loop is not None and not self._loop.is_closed():
            for descriptor in watched:
                self._loop.remove_reader(descriptor)

    def _set_timer(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ns = deadline_ns
        if deadline_ns:
            assert self._loop is not None
            delay_s = max(0.0, (deadline_ns - _now_ns()) / 1e9)
            self._timer = self._loop.call_later(delay_s, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        self._timer_ns = 0
        self._turn()

    # --- shared memory -------------------------------------------------------------------------

    def region_now(self, size: int) -> ClientRegion | None:
        """As `region`, without waiting: None when there is no connection yet, or no room."""
        if not self._memory.is_ready:
            return None
        try:
            return self._memory.allocate(size)
        except Unavailable:
            return None

    async def region(self, size: int) -> ClientRegion:
        """`size` bytes of shared memory for inputs and outputs of your own placing.

        Raises RequestError for a wrong size, Unavailable when /dev/shm has no room.
        """
        check_size(size)
        if not self._memory.is_ready:
            await self.live()
        region = self._memory.allocate(size)
        self._memory.announce(_now_ns())
        return region

    async def attach(self, key: str) -> ClientRegion:
        """Use a POSIX segment of your own, by its name; naiad never unlinks it.

        Raises RequestError when it cannot be mapped, or the server refuses it.
        """
        region, attached = self._memory.attach(key)
        try:
            await self._ask(partial(Calls.register_region, region=region), control.CALL_TIMEOUT_S)
        except NaiadError:
            self._memory.detach(region.id)
            raise
        return attached

    async def detach(self, region: ClientRegion) -> None:
        """The server forgets a segment that was attached; no request may be using it."""
        if not isinstance(region, ClientRegion):
            raise RequestError(f"expected what `attach` returned, got {region!r:.80}")
        await self._ask(partial(Calls.forget_region, region_id=region.id), control.CALL_TIMEOUT_S)
        region.close()
        self._memory.detach(region.id)

    # --- control -------------------------------------------------------------------------------

    async def live(self) -> bool:
        """Whether the server's broker answers. Raises Unavailable when it cannot be reached."""
        return bool((await self.call(control.LIVE))["live"])

    async def ready(self) -> bool:
        """Whether every model that should be loaded is."""
        return bool((await self.call(control.READY))["ready"])

    async def model_ready(self, model: str, version: int = -1) -> bool:
        """Whether at least one instance serves requests now."""
        return bool((await self.call(control.of_model("model_ready", model, version)))["ready"])

    async def metadata(self, model: str = "", version: int = -1) -> Json:
        """The model's inputs and outputs as KServe v2 has them; without a model the server's."""
        if not model:
            return await self._dict(control.SERVER_METADATA)
        return await self._dict(control.of_model("model_metadata", model, version))

    async def config(self, model: str, version: int = -1) -> Json:
        """The complete configuration with which the model runs."""
        return await self._dict(control.of_model("model_config", model, version))

    async def class_labels(self, model: str, version: int = -1, known: str = "") -> Json:
        """{"mark", "batches", "labels": {output: [names]}}; the mark alone if it is `known`."""
        return await self._dict(control.class_labels(model, version, known))

    async def statistics(self, model: str = "", version: int = -1) -> Json:
        """Triton's statistics, {"model_stats": [...]}; of all models without a name."""
        return await self._dict(control.of_model("statistics", model, version))

    async def index(self, *, ready: bool = False) -> list[Json]:
        """Every known model and version with its state; with `ready` only those that are.

        With explicit control also what was never loaded: of that there is only the name.
        """
        rows: list[Json] = await self.call(control.index(ready))
        return rows

    async def load(self, model: str, config: str | Json | None = None) -> None:
        """Load or reload a model and wait until it serves. Raises ModelError when it cannot."""
        await self.call(control.load(model, config))

    async def unload(self, model: str, *, unload_dependents: bool = False) -> None:
        """Take a model out of service; unknown ones succeed.

        Returns when nothing new is accepted, as in Triton: what is in flight is still answered, and
        then the index says "unloaded".
        """
        await self.call(control.unload(model, unload_dependents))

    async def status(self) -> Json:
        """Everything that `naiad status` shows."""
        return await self._dict(control.STATUS)

    async def region_register(self, name: str, key: str, byte_size: int, offset: int = 0) -> int:
        """Register a POSIX segment by name with the server, which keeps it; returns its id."""
        return int((await self.call(control.region_register(name, key, byte_size, offset)))["id"])

    async def region_status(self, name: str = "") -> list[Json]:
        rows: list[Json] = await self.call(control.of_region("region_status", name))
        return rows

    async def region_unregister(self, name: str = "") -> None:
        """Forget one region registered by name, or all of them. The segment itself stays."""
        await self.call(control.of_region("region_unregister", name))

    async def call(self, operation: Operation) -> Any:
        """Any control call; returns its parsed JSON."""
        if not isinstance(operation, Operation):
            raise TypeError(f"expected an Operation of naiad.client.control, got {operation!r:.80}")
        return await self._ask(operation.ask, operation.timeout_s)

    async def _ask(self, ask: Ask, timeout_s: float) -> Any:
        loop = self._attach()
        session = self._session
        if session.fault is not None:
            raise copy_of(session.fault)
        future: asyncio.Future[Any] = loop.create_future()
        ident = ask(session.calls, future, deadline_after(timeout_s, "timeout_s"))
        self._turn_soon()
        try:
            return await future
        finally:
            if future.cancelled():
                session.calls.drop(ident)

    async def _dict(self, operation: Operation) -> Json:
        found: Json = await self.call(operation)
        return found

    # --- the end -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Say BYE. Unanswered requests fail; arrays of results stay valid."""
        self._farewell.detach()
        self._completions += self._driver.close()
        self._settle()
        self._grant()
        self._set_timer(0)

    def after_fork(self, fault: RequestError) -> None:
        """In a child process: nothing here may be used."""
        self._farewell.detach()
        self._session.end(fault)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._driver.connection.address}: {self._session!r}>"

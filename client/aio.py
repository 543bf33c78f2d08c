"""The asyncio client: the same calls as `Client`, awaited. Works in any event loop (uvloop too).

Holds no rule and no socket: see `naiad.client.event_loop` for how the loop drives the connection.
Cancelling a task cancels its request.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack

import zmq

from naiad.client import control, cuda, forks
from naiad.client.arguments import (
    NO_INPUTS,
    Inputs,
    Options,
    Outputs,
    no_more_than_prepared,
    parts_of,
)
from naiad.client.calls import Calls
from naiad.client.control import Json, Operation
from naiad.client.cuda import CudaRegion
from naiad.client.driver import (
    CONNECT_TIMEOUT_S,
    Driver,
    copy_of,
    waits_when_full,
)
from naiad.client.event_loop import LoopDriver
from naiad.client.memory import Transport
from naiad.client.regions import ClientRegion, check_size
from naiad.client.requests import Prepared
from naiad.client.results import InferResult
from naiad.protocol.errors import NaiadError, RequestError
from naiad.protocol.messages import Region

_now_ns: Final = time.monotonic_ns


class AsyncClient(LoopDriver):
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
        driver = Driver(
            os.fsdecode(server), role=role, connect_timeout_s=connect_timeout_s,
            transport=transport, context=context,
        )  # fmt: skip
        super().__init__(driver, waits_for_room=waits_when_full(on_full))
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

    # --- shared memory -------------------------------------------------------------------------

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
        await self._register(region)
        return attached

    async def attach_cuda(self, array: Any, *, event: bool = False) -> CudaRegion:
        """Share the memory of an array on a GPU (CuPy, PyTorch, ...), without a copy.

        `event`: workers wait for what `CudaRegion.written` was told; without, that call waits.
        Raises RequestError when it cannot be shared, or the server refuses it.
        """
        return await self._attach_cuda(*cuda.shared_array(array, event=event))

    async def cuda_region(self, size: int, device: int = 0, *, event: bool = False) -> CudaRegion:
        """`size` bytes of a GPU's memory, shared with the server; see `attach_cuda`.

        Raises RequestError for what there is not, Unavailable when the GPU has no room.
        """
        return await self._attach_cuda(*cuda.new_memory(size, device, event=event))

    async def _attach_cuda(self, region: Region, attached: CudaRegion) -> CudaRegion:
        region = self._memory.attach_device(region, attached.memory)
        attached.id = region.id
        await self._register(region, attached.memory.uuid)
        return attached

    async def _register(self, region: Region, gpu: str = "") -> None:
        try:
            call = partial(Calls.register_region, region=region, gpu=gpu)
            await self._ask(call, control.CALL_TIMEOUT_S)
        except NaiadError:
            self._memory.detach(region.id)
            raise

    async def detach(self, region: ClientRegion | CudaRegion) -> None:
        """The server forgets a region that was attached; no request may be using it.

        Of GPU memory no worker has anything open any more when this returns: it may be freed.
        """
        if not isinstance(region, ClientRegion | CudaRegion):
            raise RequestError(f"expected what `attach` returned, got {region!r:.80}")
        await self._ask(partial(Calls.forget_region, region_id=region.id), control.CALL_TIMEOUT_S)
        if isinstance(region, ClientRegion):
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

    async def cuda_region_register(
        self, name: str, raw_handle: bytes, byte_size: int, device_id: int = 0
    ) -> int:
        """Register GPU memory by name with the server, which keeps it; returns its id.

        `raw_handle` is a cudaIpcMemHandle_t. Its process must outlive all requests that use it.
        """
        asked = control.cuda_region_register(name, raw_handle, byte_size, device_id)
        return int((await self.call(asked))["id"])

    async def region_status(
        self, name: str = "", kind: Literal["", "system", "cuda"] = ""
    ) -> list[Json]:
        """Regions registered by name: this one, or all (of a kind)."""
        rows: list[Json] = await self.call(control.of_region("region_status", name, kind))
        return rows

    async def region_unregister(
        self, name: str = "", kind: Literal["", "system", "cuda"] = ""
    ) -> None:
        """Forget one region registered by name, or all of them (of a kind). The memory stays."""
        await self.call(control.of_region("region_unregister", name, kind))

    async def call(self, operation: Operation) -> Any:
        """Any control call; returns its parsed JSON."""
        if not isinstance(operation, Operation):
            raise TypeError(f"expected an Operation of naiad.client.control, got {operation!r:.80}")
        return await self._ask(operation.ask, operation.timeout_s)

    async def _dict(self, operation: Operation) -> Json:
        found: Json = await self.call(operation)
        return found

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

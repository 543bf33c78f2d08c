"""The blocking client: inference, futures, control calls. Thread-safe.

Holds no rule and no socket: see `naiad.client.blocking` for who drives the connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, Unpack

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
from naiad.client.blocking import BlockingDriver
from naiad.client.calls import Ask, Calls
from naiad.client.control import Json, Operation
from naiad.client.cuda import CudaRegion
from naiad.client.driver import CONNECT_TIMEOUT_S, Driver, waits_when_full
from naiad.client.futures import PENDING, Future
from naiad.client.memory import Transport
from naiad.client.regions import ClientRegion, check_size
from naiad.client.requests import Prepared
from naiad.client.results import InferResult
from naiad.protocol.errors import NaiadError, RequestError
from naiad.protocol.messages import Region


class Client:
    """A connection to one server, made at first use and made again whenever it breaks.

    Args:
        server: its run directory (as in `naiad serve --run-dir`), or an ipc:// address.
        connect_timeout_s: how long requests wait for a server that is not there.
        on_full: over the server's budgets (requests and bytes in flight of one client) `submit`
            and `infer` wait, or raise Unavailable (code budget_exceeded).
        role: for people, in `naiad status`.
        transport: "auto" puts large arrays into shared memory, "shm" all of them, "inline" none.
        context: the zmq.Context to use instead of the one that all clients of a process share.

    Not usable after fork(): make a client in each process.
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
        self._blocking = BlockingDriver(driver, waits_for_room=waits_when_full(on_full))
        self._memory = driver.memory
        forks.remember(self._blocking)

    # --- inference -----------------------------------------------------------------------------

    def infer(
        self,
        model: str | Prepared,
        inputs: Inputs = NO_INPUTS,
        outputs: Outputs | None = None,
        **options: Unpack[Options],
    ) -> InferResult:
        """Ask a model and wait for its answer.

        Args:
            model: its name; or what `prepare` returned, and nothing else.
            inputs: arrays by name, or a list of InferInput.
            outputs: names wanted (default: all), or OutputPlace by name.
            options: see Options: version, label, priority, timeout_us, parameters, ...

        Raises:
            NaiadError: RequestError, ModelError, Unavailable, ... with `code` and `message`.
        """
        if not isinstance(model, Prepared):
            model = self._parts(model, inputs, outputs, options)
        else:
            no_more_than_prepared(inputs, outputs, options)
        future: Future[InferResult] = Future(self._blocking)
        try:
            self._blocking.submit(future, model)
            return future.result()
        finally:
            if future.state is PENDING:  # KeyboardInterrupt: nobody waits any more
                future.cancel()

    def submit(
        self,
        model: str | Prepared,
        inputs: Inputs = NO_INPUTS,
        outputs: Outputs | None = None,
        *,
        callback: Callable[[Future[InferResult]], Any] | None = None,
        **options: Unpack[Options],
    ) -> Future[InferResult]:
        """Ask a model and go on; arguments as for `infer`, `callback` as in add_done_callback.

        Requests submitted together travel together: the first goes at once, further ones when a
        thread next waits for a result, or within a millisecond. Leave large inputs unchanged until
        the future is done.
        """
        if not isinstance(model, Prepared):
            model = self._parts(model, inputs, outputs, options)
        else:
            no_more_than_prepared(inputs, outputs, options)
        blocking = self._blocking
        future: Future[InferResult] = Future(blocking)
        if callback is not None:
            if not callable(callback):
                raise TypeError(f"callback: expected a function, got {callback!r:.80}")
            future.callbacks = [callback]
        blocking.submit(future, model)
        if not (blocking.pump.is_running and blocking.is_led):
            blocking.send_soon()
        return future

    def _parts(
        self, model: str, inputs: Inputs, outputs: Outputs | None, options: Options
    ) -> Prepared:
        memory = self._memory
        if not memory.is_ready and memory.wants(inputs) and not self._blocking.is_leading:
            self.live()  # its name is needed for shared memory
        return parts_of(model, inputs, outputs, options, memory)

    def drive(self, timeout: float | None = None) -> bool:
        """Send and receive until something was completed, and run its callbacks.

        For programs of one thread that work with callbacks alone. False: nothing is unanswered, or
        nothing came within `timeout` seconds.
        """
        return self._blocking.drive(timeout)

    # --- shared memory -------------------------------------------------------------------------

    def region(self, size: int) -> ClientRegion:
        """`size` bytes of shared memory for inputs and outputs of your own placing.

        Raises RequestError for a wrong size, Unavailable when /dev/shm has no room.
        """
        check_size(size)
        if not self._memory.is_ready:
            self.live()
        return self._blocking.region(size)

    def attach(self, key: str) -> ClientRegion:
        """Use a POSIX segment of your own, by its name; naiad never unlinks it.

        Raises RequestError when it cannot be mapped, or the server refuses it.
        """
        region, attached = self._memory.attach(key)
        self._register(region)
        return attached

    def attach_cuda(self, array: Any, *, event: bool = False) -> CudaRegion:
        """Share the memory of an array on a GPU (CuPy, PyTorch, ...), without a copy.

        `event`: workers wait for what `CudaRegion.written` was told; without, that call waits.
        Raises RequestError when it cannot be shared, or the server refuses it.
        """
        return self._attach_cuda(*cuda.shared_array(array, event=event))

    def cuda_region(self, size: int, device: int = 0, *, event: bool = False) -> CudaRegion:
        """`size` bytes of a GPU's memory, shared with the server; see `attach_cuda`.

        Raises RequestError for what there is not, Unavailable when the GPU has no room.
        """
        return self._attach_cuda(*cuda.new_memory(size, device, event=event))

    def _attach_cuda(self, region: Region, attached: CudaRegion) -> CudaRegion:
        region = self._memory.attach_device(region, attached.memory)
        attached.id = region.id
        self._register(region, attached.memory.uuid)
        return attached

    def _register(self, region: Region, gpu: str = "") -> None:
        try:
            call = partial(Calls.register_region, region=region, gpu=gpu)
            self._ask(call, control.CALL_TIMEOUT_S)
        except NaiadError:
            self._memory.detach(region.id)
            raise

    def detach(self, region: ClientRegion | CudaRegion) -> None:
        """The server forgets a region that was attached; no request may be using it.

        Of GPU memory no worker has anything open any more when this returns: it may be freed.
        """
        if not isinstance(region, ClientRegion | CudaRegion):
            raise RequestError(f"expected what `attach` returned, got {region!r:.80}")
        self._ask(partial(Calls.forget_region, region_id=region.id), control.CALL_TIMEOUT_S)
        if isinstance(region, ClientRegion):
            region.close()
        self._memory.detach(region.id)

    # --- control -------------------------------------------------------------------------------

    def live(self) -> bool:
        """Whether the server's broker answers. Raises Unavailable when it cannot be reached."""
        return bool(self.call(control.LIVE)["live"])

    def ready(self) -> bool:
        """Whether every model that should be loaded is."""
        return bool(self.call(control.READY)["ready"])

    def model_ready(self, model: str, version: int = -1) -> bool:
        """Whether at least one instance serves requests now."""
        return bool(self.call(control.of_model("model_ready", model, version))["ready"])

    def metadata(self, model: str = "", version: int = -1) -> Json:
        """The model's inputs and outputs as KServe v2 has them; without a model the server's."""
        if not model:
            return self._dict(control.SERVER_METADATA)
        return self._dict(control.of_model("model_metadata", model, version))

    def config(self, model: str, version: int = -1) -> Json:
        """The complete configuration with which the model runs."""
        return self._dict(control.of_model("model_config", model, version))

    def statistics(self, model: str = "", version: int = -1) -> Json:
        """Triton's statistics, {"model_stats": [...]}; of all models without a name."""
        return self._dict(control.of_model("statistics", model, version))

    def index(self, *, ready: bool = False) -> list[Json]:
        """Every known model and version with its state; with `ready` only those that are.

        With explicit control also what was never loaded: of that there is only the name.
        """
        rows: list[Json] = self.call(control.index(ready))
        return rows

    def load(self, model: str, config: str | Json | None = None) -> None:
        """Load or reload a model and wait until it serves. Raises ModelError when it cannot."""
        self.call(control.load(model, config))

    def unload(self, model: str, *, unload_dependents: bool = False) -> None:
        """Take a model out of service; unknown ones succeed.

        Returns when nothing new is accepted, as in Triton: what is in flight is still answered, and
        then the index says "unloaded".
        """
        self.call(control.unload(model, unload_dependents))

    def status(self) -> Json:
        """Everything that `naiad status` shows."""
        return self._dict(control.STATUS)

    def region_register(self, name: str, key: str, byte_size: int, offset: int = 0) -> int:
        """Register a POSIX segment by name with the server, which keeps it; returns its id."""
        return int(self.call(control.region_register(name, key, byte_size, offset))["id"])

    def cuda_region_register(
        self, name: str, raw_handle: bytes, byte_size: int, device_id: int = 0
    ) -> int:
        """Register GPU memory by name with the server, which keeps it; returns its id.

        `raw_handle` is a cudaIpcMemHandle_t. Its process must outlive all requests that use it.
        """
        asked = control.cuda_region_register(name, raw_handle, byte_size, device_id)
        return int(self.call(asked)["id"])

    def region_status(self, name: str = "", kind: Literal["", "system", "cuda"] = "") -> list[Json]:
        """Regions registered by name: this one, or all (of a kind)."""
        rows: list[Json] = self.call(control.of_region("region_status", name, kind))
        return rows

    def region_unregister(self, name: str = "", kind: Literal["", "system", "cuda"] = "") -> None:
        """Forget one region registered by name, or all of them (of a kind). The memory stays."""
        self.call(control.of_region("region_unregister", name, kind))

    def call(self, operation: Operation) -> Any:
        """Any control call; returns its parsed JSON."""
        if not isinstance(operation, Operation):
            raise TypeError(f"expected an Operation of naiad.client.control, got {operation!r:.80}")
        return self._ask(operation.ask, operation.timeout_s)

    def _ask(self, ask: Ask, timeout_s: float) -> Any:
        future: Future[Any] = Future(self._blocking, is_call=True)
        try:
            self._blocking.call(future, ask, timeout_s)
            return future.result()
        finally:
            if future.state is PENDING:
                future.cancel()

    def _dict(self, operation: Operation) -> Json:
        found: Json = self.call(operation)
        return found

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Say BYE. Unanswered requests fail; arrays of results stay valid."""
        self._blocking.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        driver = self._blocking.driver
        return f"<Client of {driver.connection.address}: {driver.session!r}>"

"""The way of a batch: bytes to the device, execution, each request's rows to where it wants them.

The bytes of each request are copied straight to their offset in the batch's buffer, and its rows
straight to where it wants them, on streams of their own for both directions: while one batch is
executed, the next can come in. Nothing is allocated on the way but what holds results beyond the
pinned memory. What executes is an Executor; when a batch is staged and launched is the pipeline's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from naiad.protocol.datatypes import NUMPY_NAME
from naiad.protocol.errors import Code, ModelError
from naiad.worker.backends.base import ModelRequest, ModelResponse
from naiad.worker.backends.tensorrt.client_memory import ClientMemory, address_of
from naiad.worker.backends.tensorrt.engine import Binding
from naiad.worker.backends.tensorrt.executor import Executor
from naiad.worker.backends.tensorrt.flight import Flight
from naiad.worker.backends.tensorrt.graph_specs import GraphSpec
from naiad.worker.backends.tensorrt.graphs import CapturedGraph, CapturedGraphs
from naiad.worker.backends.tensorrt.incoming import Incoming
from naiad.worker.backends.tensorrt.memory import BufferSet, ResultMemory
from naiad.worker.backends.tensorrt.outgoing import Outgoing
from naiad.worker.backends.tensorrt.profiles import Profile
from naiad.worker.backends.tensorrt.streams import Streams

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

DYNAMIC: Final = -1


class DataPath:
    """Brings batches to one executor and back; `bindings` are all inputs and outputs it has."""

    def __init__(
        self,
        executor: Executor,
        profile: Profile,
        bindings: Sequence[Binding],
        streams: Streams,
        clients: ClientMemory,
        results: ResultMemory,
    ) -> None:
        self.profile = profile
        self.executor = executor
        self._streams = streams
        self._clients = clients
        self.stage: Final = Incoming(bindings, streams, clients).stage
        """Starts the copies in, for a Flight."""
        self._outgoing = Outgoing(bindings, streams, clients, results)
        self._inputs = [b for b in bindings if b.is_input]
        self._outputs = {b.name: b for b in bindings if not b.is_input}
        self._host: dict[str, Array] = {}
        self._untold: set[str] = set()
        self._has_host_inputs = any(b.is_host for b in self._inputs)
        self._is_told_late = False
        """Whether shapes or values of outputs are known only after the execution."""
        self._launching: Flight | None = None
        self._graphs = CapturedGraphs(streams)

    # --- Load ----------------------------------------------------------------------------------

    def reserve(self, sets: Sequence[BufferSet], results: dict[str, int]) -> None:
        """Find the greatest size of every tensor; those of outputs go into `results` as well."""
        greatest = {b.name: self.profile.shapes[b.name].greatest for b in self._inputs}
        for binding in self._inputs:
            name = binding.name
            size = binding.size_bytes(greatest[name])
            if binding.is_host:
                self._own_host_memory(binding, size)
                if name in self.profile.values:
                    self._host[name][:] = self.profile.values[name].greatest
            else:
                for one in sets:
                    one.reserve_input(name, size)
        executor = self.executor
        executor.set_shapes(greatest, have_values_changed=True)
        for name, binding in self._outputs.items():
            shape = executor.shape(name)
            if DYNAMIC in shape:
                self._untold.add(name)
                executor.allocate_with(name, self._room_now)
                continue
            size = max(binding.size_bytes(shape), executor.size_max(name))
            if binding.is_host:
                self._own_host_memory(binding, size)
            else:
                for one in sets:
                    one.reserve_output(name, size)
                results[name] = max(size, results.get(name, 0))
        self._is_told_late = bool(self._untold) or any(name in self._host for name in self._outputs)

    def _own_host_memory(self, binding: Binding, size: int) -> None:
        name = binding.name
        dtype = np.dtype(NUMPY_NAME.get(binding.datatype, "uint16"))
        room = self._host[name] = np.zeros(max(1, size // dtype.itemsize), dtype)
        self.executor.bind(name, address_of(room))

    def _room_now(self, name: str, size: int) -> int:
        """Asked by the executor for outputs of unknown size."""
        assert self._launching is not None
        return self._launching.buffers.device.room(name, size)

    # --- Execution -----------------------------------------------------------------------------

    def capture(self, spec: GraphSpec, trial: ModelRequest, buffers: BufferSet) -> None:
        """Capture an execution of these shapes, after one of the `trial`, which has them.

        That one settles what TensorRT decides by shapes, and fills the rows of later paddings.
        Raises ModelError where it cannot be captured.
        """
        if self._is_told_late or self._has_host_inputs:
            raise ModelError(
                "shapes or values of inputs or outputs are in host memory, or known only after the "
                "execution"
            )
        flight = self.stage([trial], None, spec.shapes, buffers)
        self._prepare(flight, in_turn=False)
        self._streams.execute_after(buffers.copied_in)
        self.executor.start(self._streams.execution)
        self._streams.finish()
        graph = self._streams.capture(lambda: self.executor.start(self._streams.execution))
        outputs = {name: shape for name, (shape, _) in flight.results.items()}
        self._graphs.add(buffers, CapturedGraph(spec, graph, outputs))

    def launch(self, flight: Flight, *, in_turn: bool) -> None:
        """Execute it once its inputs are there; no other flight of this path is being executed.

        `in_turn`: its results may go to its clients now.
        """
        rows = 0 if flight.rows is None else sum(flight.rows)
        captured = None
        if not flight.bound:  # a graph reads where it did when it was captured
            captured = self._graphs.find(flight.buffers, flight.shapes, rows)
        if captured is None:
            self._prepare(flight, in_turn=in_turn)
        else:
            flight.results = {name: (shape, None) for name, shape in captured.outputs.items()}
            flight.padding = captured.spec.rows - rows if rows else 0
        self._streams.execute_after(flight.buffers.copied_in)
        if captured is not None:
            self._streams.launch(captured.graph)
        else:
            self._launching = flight
            try:
                self.executor.start(self._streams.execution)
            finally:
                self._launching = None
        self._streams.mark_executed(flight.buffers.executed)
        flight.is_launched = True

    def _prepare(self, flight: Flight, *, in_turn: bool) -> None:
        """Tell the executor shapes and addresses."""
        executor, device = self.executor, flight.buffers.device
        for binding in self._inputs:
            name = binding.name
            size = binding.size_bytes(flight.shapes[name])
            if binding.is_host:
                own = self._host[name]
                content = np.frombuffer(flight.requests[0].inputs[name].buffer, own.dtype)
                own[: len(content)] = content
                if flight.rows is not None:
                    own[0] = sum(flight.rows)  # the first value of a shape tensor is the batch
            else:
                executor.bind(name, flight.bound.get(name) or device.room(name, size))
        executor.set_shapes(flight.shapes, have_values_changed=self._has_host_inputs)
        for name, binding in self._outputs.items():
            if name in self._untold:
                continue
            shape = executor.shape(name)
            if DYNAMIC in shape:
                raise ModelError(
                    f"output '{name}': TensorRT does not know its shape {list(shape)} before the "
                    "execution, though it did when the engine was loaded",
                    code=Code.MODEL_OUTPUT_INVALID,
                )
            flight.results[name] = shape, None
            size = binding.size_bytes(shape)
            if binding.is_host:
                if size > self._host[name].nbytes:
                    self._own_host_memory(binding, size)
            else:
                address = self._writable(name, flight, size) if in_turn else 0
                executor.bind(name, address or device.room(name, size))

    def _writable(self, name: str, flight: Flight, size: int) -> int:
        """Where the engine can write the output in its client's own device memory; else 0."""
        if len(flight.requests) != 1 or flight.requests[0].device is None:
            return 0
        inputs, places = flight.requests[0].device
        span = places.get(name)
        if span is None or span.size < size or not self._clients.is_bindable(span):
            return 0
        end = span.address + size
        if any(
            one.address < end and span.address < one.address + one.size for one in inputs.values()
        ):
            return 0  # it would be read while it is written
        if span.event is not None:
            self._streams.execute_after(span.event)
        flight.bound[name] = span.address
        return span.address

    def wait_executed(self, flight: Flight, meanwhile: Callable[[], None] | None) -> None:
        """Wait for the execution, and take from the executor what the next one would change."""
        self._streams.wait(flight.buffers.executed, meanwhile)
        for name, binding in self._outputs.items():
            if name in self._untold:
                flight.results[name] = self.executor.told_shape(name), None
            elif binding.is_host:
                shape, _ = flight.results[name]
                size = binding.size_bytes(shape)
                flight.results[name] = shape, self._host[name].view(np.uint8)[:size].tobytes()

    # --- Out -----------------------------------------------------------------------------------

    def copy_out_early(self, flight: Flight) -> None:
        """Let the copies out follow the execution by themselves, where all is known before it.

        A copy to ordinary memory would wait inside CUDA, on a busy core.
        """
        if not self._is_told_late and self._outgoing.cut(flight):
            self._outgoing.copy(flight)

    def responses(self, flight: Flight) -> list[ModelResponse]:
        """After `wait_executed`: the results, when they are where they belong."""
        if not flight.is_copied_out:
            if not flight.parts:
                self._outgoing.cut(flight)
            self._outgoing.copy(flight)
        self._streams.wait(flight.buffers.copied_out)
        return self._outgoing.responses(flight)

    def close(self) -> None:
        self._graphs.close()
        self.executor.close()

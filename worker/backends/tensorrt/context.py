"""An execution context of TensorRT, each of its setters checked and none called twice for nothing.

Setters return False where something is wrong and log why; here that is a ModelError with the last
lines of the log. Owns what the context was told so far; moves no bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naiad.protocol.errors import ModelError
from naiad.worker.backends.tensorrt.engine import load_error
from naiad.worker.backends.tensorrt.executor import Room
from naiad.worker.backends.tensorrt.memory import output_allocator
from naiad.worker.backends.tensorrt.profiles import Shape
from naiad.worker.backends.tensorrt.runtime import LoadedEngine
from naiad.worker.backends.tensorrt.streams import Streams


class Context:
    """An Executor that stays in one profile. `strategy` is how it takes its memory."""

    def __init__(self, loaded: LoadedEngine, profile: int, streams: Streams, strategy: str) -> None:
        self._trt = loaded.trt
        self._words = loaded.words
        self._cuda = cuda = streams.cuda
        self._shapes: dict[str, Shape] = {}
        self._bound: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        strategies = loaded.trt.ExecutionContextAllocationStrategy
        context = loaded.engine.create_execution_context(getattr(strategies, strategy))
        cuda.forget_error(f"creating the context of profile {profile}")
        if context is None:
            size = loaded.engine.get_device_memory_size_for_profile_v2(profile)
            shortage = cuda.out_of_memory(size, f"the context of profile {profile}")
            raise load_error(f"{shortage.message}: {self._words.take()}")
        self._context: Any = context
        self._must(
            context.set_optimization_profile_async(profile, streams.execution), f"profile {profile}"
        )
        streams.finish()

    def set_shapes(self, shapes: Mapping[str, Shape], *, have_values_changed: bool) -> None:
        """The inputs' shapes. `have_values_changed`: shape tensors may hold other values now."""
        is_new = have_values_changed
        for name, shape in shapes.items():
            if self._shapes.get(name) != shape:
                self._shapes.pop(name, None)
                accepted = self._context.set_input_shape(name, shape)
                self._must(accepted, f"{list(shape)} for '{name}'")
                self._shapes[name] = shape
                is_new = True
        if not is_new:
            return
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            self._shapes.clear()
            raise ModelError(f"TensorRT cannot infer shapes: {error}") from error
        if missing:
            self._shapes.clear()
            raise ModelError(
                f"TensorRT misses the shapes or values of {missing}: {self._words.take()}"
            )

    def shape(self, name: str) -> Shape:
        """Of an output, by the shapes of the inputs; -1 where only the execution tells."""
        return tuple(self._context.get_tensor_shape(name))

    def size_max(self, name: str) -> int:
        """The upper bound over the profile, as far as TensorRT knows."""
        return int(self._context.get_max_output_size(name))

    def bind(self, name: str, address: int) -> None:
        if self._bound.get(name) != address:
            self._must(self._context.set_tensor_address(name, address), f"memory of '{name}'")
            self._bound[name] = address

    def allocate_with(self, name: str, room: Room) -> None:
        """Ask `room` for the memory of an output whose shape only the execution tells."""
        allocator = output_allocator(self._trt, room)
        accepted = self._context.set_output_allocator(name, allocator)
        self._must(accepted, f"the allocator of output '{name}'")
        self._allocators[name] = allocator

    def start(self, stream: int) -> None:
        """Give one execution to the stream."""
        for allocator in self._allocators.values():
            allocator.shape = allocator.fault = None
        if self._context.execute_async_v3(stream):
            return
        for allocator in self._allocators.values():
            if allocator.fault is not None:
                raise allocator.fault
        self._cuda.forget_error("starting the execution")
        raise ModelError(f"TensorRT could not start the execution: {self._words.take()}")

    def told_shape(self, name: str) -> Shape:
        """Of an output that has an allocator, after an execution."""
        shape: Shape | None = self._allocators[name].shape
        if shape is None:
            raise ModelError(
                f"output '{name}': TensorRT did not tell its shape: {self._words.take()}"
            )
        return shape

    def close(self) -> None:
        self._context = None

    def _must(self, accepted: bool, what: str) -> None:
        if not accepted:
            raise ModelError(f"TensorRT refused {what}: {self._words.take()}")

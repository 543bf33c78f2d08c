"""One execution context: inputs go to the device, the batch runs, each request gets its rows.

The bytes of each request are copied straight to their offset in the batch's buffer, and its rows
straight to where it wants them, all on the instance's own stream. Nothing is allocated on the way
but what holds results beyond the pinned memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from naiad.protocol.datatypes import NUMPY_NAME, element_count
from naiad.protocol.errors import Code, ModelError, RequestError
from naiad.worker.backends.base import ModelRequest, ModelResponse, OutputTensor
from naiad.worker.backends.tensorrt.context import Context
from naiad.worker.backends.tensorrt.cuda import Cuda
from naiad.worker.backends.tensorrt.engine import Binding
from naiad.worker.backends.tensorrt.memory import DeviceBuffers, ResultMemory, output_allocator
from naiad.worker.backends.tensorrt.profiles import Profile, Shape
from naiad.worker.backends.tensorrt.runtime import LoadedEngine

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

DYNAMIC: Final = -1


def cuts(rows: Sequence[int], row_bytes: int) -> list[tuple[int, int]]:
    """(first byte, one beyond the last) of each request in a batch's buffer."""
    return list(pairwise(accumulate((count * row_bytes for count in rows), initial=0)))


class ProfileRunner:
    """Runs batches in one profile; `inputs` and `outputs` are all of the engine's."""

    def __init__(
        self,
        loaded: LoadedEngine,
        profile: Profile,
        bindings: Sequence[Binding],
        cuda: Cuda,
        buffers: DeviceBuffers,
        strategy: str,
    ) -> None:
        self.profile = profile
        self._trt = loaded.trt
        self._buffers = buffers
        self._cuda = cuda
        self._inputs = [b for b in bindings if b.is_input]
        self._outputs = {b.name: b for b in bindings if not b.is_input}
        self._host: dict[str, Array] = {}
        self._untold: set[str] = set()
        self._shapes: dict[str, Shape] = {}
        self._has_host_inputs = any(b.is_host for b in self._inputs)
        self._is_settled_first = False
        self._context = Context(loaded, profile.index, cuda, strategy)

    # --- Load ----------------------------------------------------------------------------------

    def reserve(self, results: dict[str, int]) -> None:
        """Find the greatest size of every tensor; those of outputs go into `results` as well."""
        buffers = self._buffers
        greatest = {b.name: self.profile.shapes[b.name].greatest for b in self._inputs}
        for binding in self._inputs:
            name = binding.name
            size = binding.size_bytes(greatest[name])
            if binding.is_host:
                self._own_host_memory(binding, greatest[name])
                if name in self.profile.values:
                    self._host[name][:] = self.profile.values[name].greatest
            else:
                buffers.reserve(name, size)
        self._context.set_shapes(greatest, have_values_changed=True)
        for name, binding in self._outputs.items():
            shape = self._context.shape(name)
            if DYNAMIC in shape:
                self._untold.add(name)
                self._context.allocate_with(name, output_allocator(self._trt, buffers))
                continue
            size = max(binding.size_bytes(shape), self._context.size_max(name))
            if binding.is_host:
                self._own_host_memory(binding, shape)
            else:
                buffers.reserve(name, size)
                results[name] = max(size, results.get(name, 0))
        self._is_settled_first = bool(self._untold) or any(
            name in self._host for name in self._outputs
        )

    def _own_host_memory(self, binding: Binding, shape: Shape) -> None:
        name = binding.name
        dtype = NUMPY_NAME.get(binding.datatype, "uint16")
        room = self._host[name] = np.zeros(max(1, element_count(shape)), dtype)
        self._context.bind(name, _address(room))

    # --- A batch -------------------------------------------------------------------------------

    def run(
        self,
        requests: Sequence[ModelRequest],
        rows: Sequence[int] | None,
        shapes: Mapping[str, Shape],
        results: ResultMemory,
    ) -> list[ModelResponse]:
        """The responses of requests that are joined by `rows` into inputs of these shapes.

        Without `rows` there is one request. Whatever is raised, nothing of the batch is still
        under way then: the memory that it was to read and write is its owners' again.
        """
        try:
            self._gather(requests, rows, shapes)
            self._execute(shapes)
            if self._is_settled_first or results.is_partial or any(r.places for r in requests):
                # Shapes and values that are known only then; and a copy to ordinary memory waits
                # inside CUDA, on a busy core.
                self._cuda.finish()
            responses = self._scatter(requests, rows, results)
        except Exception:
            self._cuda.finish()
            raise
        self._cuda.finish()
        return responses

    def _gather(
        self,
        requests: Sequence[ModelRequest],
        rows: Sequence[int] | None,
        shapes: Mapping[str, Shape],
    ) -> None:
        copy_in = self._cuda.copy_in
        for binding in self._inputs:
            name = binding.name
            shape = shapes[name]
            size = binding.size_bytes(shape)
            if binding.is_host:
                content = requests[0].inputs[name].buffer
                _check_size(name, shape, size, len(content))
                own = self._host[name]
                own[: element_count(shape)] = np.frombuffer(content, own.dtype)
                continue
            device = self._buffers.room(name, size)
            self._context.bind(name, device)
            if rows is None:
                places = [(0, size)]
            else:
                places = cuts(rows, size // shape[0] if shape[0] else 0)
            for request, (begin, end) in zip(requests, places, strict=True):
                buffer = request.inputs[name].buffer
                _check_size(name, request.inputs[name].shape, end - begin, len(buffer))
                if end > begin:
                    copy_in(device + begin, _address(buffer), end - begin)

    def _execute(self, shapes: Mapping[str, Shape]) -> None:
        context = self._context
        context.set_shapes(shapes, have_values_changed=self._has_host_inputs)
        for name, binding in self._outputs.items():
            if name in self._untold:
                continue
            shape = self._shapes[name] = context.shape(name)
            if DYNAMIC in shape:
                raise ModelError(
                    f"output '{name}': TensorRT does not know its shape {list(shape)} before the "
                    "execution, though it did when the engine was loaded",
                    code=Code.MODEL_OUTPUT_INVALID,
                )
            if not binding.is_host:
                context.bind(name, self._buffers.room(name, binding.size_bytes(shape)))
        context.start()

    def _scatter(
        self,
        requests: Sequence[ModelRequest],
        rows: Sequence[int] | None,
        results: ResultMemory,
    ) -> list[ModelResponse]:
        outputs: list[list[OutputTensor]] = [[] for _ in requests]
        wanted = {name for request in requests for name in request.requested_outputs}
        for name in self._outputs:
            if name not in wanted:
                continue
            parts = self._answers(name, requests, rows, results)
            for own, request, part in zip(outputs, requests, parts, strict=True):
                if name in request.requested_outputs:
                    own.append(part)
        return [ModelResponse(own) for own in outputs]

    def _answers(
        self,
        name: str,
        requests: Sequence[ModelRequest],
        rows: Sequence[int] | None,
        results: ResultMemory,
    ) -> list[OutputTensor]:
        """One output, cut for its requests; the copies are under way."""
        binding = self._outputs[name]
        shape = self._context.told_shape(name) if name in self._untold else self._shapes[name]
        size = binding.size_bytes(shape)
        if rows is None:
            places, shapes = [(0, size)], [shape]
        else:
            total = sum(rows)
            if shape[:1] != (total,):
                raise ModelError(
                    f"output '{name}': expected the batch of {total} as first dimension, "
                    f"got {list(shape)}",
                    code=Code.MODEL_OUTPUT_INVALID,
                )
            places = cuts(rows, size // total if total else 0)
            shapes = [(count, *shape[1:]) for count in rows]
        if binding.is_host:
            content = self._host[name].view(np.uint8)[:size].copy()
            return [
                OutputTensor(name, binding.datatype, own, None, content[begin:end].data)
                for own, (begin, end) in zip(shapes, places, strict=True)
            ]
        device = self._buffers.room(name, size)
        memory = self._returned(name, requests, places, results)
        answers = []
        for own, (begin, end), target in zip(shapes, places, memory, strict=True):
            if end > begin:
                self._cuda.copy_out(_address(target), device + begin, end - begin)
            buffer = target.data if end > begin else b""
            answers.append(OutputTensor(name, binding.datatype, own, None, buffer))
        return answers

    def _returned(
        self,
        name: str,
        requests: Sequence[ModelRequest],
        places: Sequence[tuple[int, int]],
        results: ResultMemory,
    ) -> list[Any]:
        """Where each request's bytes go: the client's own memory where they fit, else ours."""
        memory: list[Any] = []
        ours = None
        for request, (begin, end) in zip(requests, places, strict=True):
            place = request.places.get(name)
            if place is not None and end - begin <= place.nbytes:
                memory.append(place[: end - begin])
                continue
            if ours is None:
                ours = results.take(name, places[-1][1])
            memory.append(ours[begin:end])
        return memory

    def close(self) -> None:
        self._context.close()


def _check_size(name: str, shape: Shape, expected: int, got: int) -> None:
    if got != expected:
        raise RequestError(
            f"input '{name}': expected {expected} bytes for the shape {list(shape)}, got {got}"
        )


def _address(buffer: Any) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address

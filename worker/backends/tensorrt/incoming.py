"""The way in: each request's bytes of every input, straight to their offset in the batch's buffer.

The device reads clients' registered memory and clients' own device memory by itself; other bytes go
through pinned staging. Owns no decision when a batch is brought in: that is the pipeline's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from naiad.protocol.errors import RequestError
from naiad.worker.backends.base import ModelRequest
from naiad.worker.backends.tensorrt.client_memory import ClientMemory, address_of
from naiad.worker.backends.tensorrt.engine import Binding
from naiad.worker.backends.tensorrt.flight import Flight, cuts
from naiad.worker.backends.tensorrt.memory import BufferSet
from naiad.worker.backends.tensorrt.profiles import Shape
from naiad.worker.backends.tensorrt.streams import Streams


class Incoming:
    """Of one executor, whose `bindings` are all inputs and outputs."""

    def __init__(
        self, bindings: Sequence[Binding], streams: Streams, clients: ClientMemory
    ) -> None:
        self._inputs = [b for b in bindings if b.is_input]
        self._streams = streams
        self._clients = clients

    def stage(
        self,
        requests: Sequence[ModelRequest],
        rows: Sequence[int] | None,
        shapes: Mapping[str, Shape],
        buffers: BufferSet,
    ) -> Flight:
        """Start the copies in of requests that are joined by `rows` into inputs of these shapes.

        Raises RequestError for bytes that do not fit; what was begun before is under way then.
        """
        bound: dict[str, int] = {}
        self._streams.mark_copied_in(buffers.begun)
        for binding in self._inputs:
            name, shape = binding.name, shapes[binding.name]
            size = binding.size_bytes(shape)
            if binding.is_host:
                continue
            places = [(0, size)]
            if rows is not None:
                places = cuts(rows, size // shape[0])
            address = self._bindable(name, requests, size)
            if address:
                bound[name] = address
                continue
            self._copy_in(name, requests, places, buffers)
        self._streams.mark_copied_in(buffers.copied_in)
        return Flight(requests, rows, shapes, buffers, bound=bound)

    def _bindable(self, name: str, requests: Sequence[ModelRequest], size: int) -> int:
        """Where the engine can read the input in its client's own device memory; else 0."""
        if len(requests) != 1 or requests[0].device is None:
            return 0
        span = requests[0].device.inputs.get(name)
        if span is None or span.size != size or not self._clients.is_bindable(span):
            return 0
        if span.event is not None:
            self._streams.copy_in_after(span.event)  # and the execution after the copies in
        return span.address

    def _copy_in(
        self,
        name: str,
        requests: Sequence[ModelRequest],
        places: Sequence[tuple[int, int]],
        buffers: BufferSet,
    ) -> None:
        """One input of all requests, each to its place in the device's buffer.

        Clients' registered memory is read by the device. Other bytes go through staging, and those
        that lie there side by side are one copy.
        """
        size = places[-1][1]
        device = buffers.device.room(name, size)
        staging = buffers.staging.view(name, size)
        staged: list[tuple[int, int]] = []
        for request, (begin, end) in zip(requests, places, strict=True):
            tensor = request.inputs[name]
            span = None if request.device is None else request.device.inputs.get(name)
            if span is not None:
                _check_size(name, tensor.shape, end - begin, span.size)
                if span.event is not None:
                    self._streams.copy_in_after(span.event)
                if span.size:
                    self._streams.copy_in_on_device(device + begin, span.address, span.size)
                continue
            buffer = tensor.buffer
            _check_size(name, tensor.shape, end - begin, len(buffer))
            if begin == end:
                continue
            if staging is None or self._clients.is_direct(buffer):
                self._streams.copy_in(device + begin, address_of(buffer), end - begin)
                continue
            staging[begin:end] = np.frombuffer(buffer, np.uint8)
            if staged and staged[-1][1] == begin:
                begin = staged.pop()[0]
            staged.append((begin, end))
        for begin, end in staged:
            assert staging is not None
            self._streams.copy_in(device + begin, address_of(staging) + begin, end - begin)


def _check_size(name: str, shape: Shape, expected: int, got: int) -> None:
    if got != expected:
        raise RequestError(
            f"input '{name}': expected {expected} bytes for the shape {list(shape)}, got {got}"
        )

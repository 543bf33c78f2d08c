"""The way out: each request's rows of every output, straight to where it wants them.

That is the client's own memory, ordinary or a GPU's, where they fit, else pinned memory of the
worker, else ordinary memory. Owns no copy's timing: the data path says when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from naiad.protocol.datatypes import NUMPY_NAME
from naiad.protocol.errors import Code, ModelError
from naiad.worker.backends.base import DeviceSpan, ModelRequest, ModelResponse, OutputTensor
from naiad.worker.backends.tensorrt.client_memory import ClientMemory, address_of, owner
from naiad.worker.backends.tensorrt.engine import Binding
from naiad.worker.backends.tensorrt.flight import Flight, Part, cuts
from naiad.worker.backends.tensorrt.memory import ResultMemory
from naiad.worker.backends.tensorrt.profiles import Shape
from naiad.worker.backends.tensorrt.streams import Streams


class Outgoing:
    """Of one executor, whose `bindings` are all inputs and outputs."""

    def __init__(
        self,
        bindings: Sequence[Binding],
        streams: Streams,
        clients: ClientMemory,
        results: ResultMemory,
    ) -> None:
        self._outputs = {b.name: b for b in bindings if not b.is_input}
        self._streams = streams
        self._clients = clients
        self._results = results

    def responses(self, flight: Flight) -> list[ModelResponse]:
        """When the copies are done."""
        outputs: list[list[OutputTensor]] = [[] for _ in flight.requests]
        for name, parts in flight.parts.items():
            datatype = self._outputs[name].datatype
            for own, request, part in zip(outputs, flight.requests, parts, strict=True):
                if name in request.requested_outputs:
                    if isinstance(part.target, DeviceSpan):
                        own.append(OutputTensor(name, datatype, part.shape, span=part.target))
                        continue
                    buffer = part.target.data if part.end > part.begin else b""
                    own.append(OutputTensor(name, datatype, part.shape, None, buffer))
        return [ModelResponse(own) for own in outputs]

    def cut(self, flight: Flight) -> bool:
        """Whose is which part of each wanted output; whether the device writes all by itself."""
        wanted = {name for request in flight.requests for name in request.requested_outputs}
        is_direct = True
        for name, binding in self._outputs.items():
            if name not in wanted:
                continue
            shape, content = flight.results[name]
            size = binding.size_bytes(shape)
            rows = flight.rows
            if content is not None:
                flight.parts[name] = _told(binding, shape, content, flight)
                continue
            if rows is None:
                places, shapes = [(0, size)], [shape]
            else:
                total = sum(rows) + flight.padding
                if shape[:1] != (total,):
                    raise ModelError(
                        f"output '{name}': expected the batch of {total} as first dimension, "
                        f"got {list(shape)}",
                        code=Code.MODEL_OUTPUT_INVALID,
                    )
                places = cuts(rows, size // total)
                shapes = [(count, *shape[1:]) for count in rows]
            targets, are_direct = self._targets(name, flight.requests, places)
            is_direct = is_direct and are_direct
            flight.parts[name] = [
                Part(own, *place, target)
                for own, place, target in zip(shapes, places, targets, strict=True)
            ]
        return is_direct

    def _targets(
        self, name: str, requests: Sequence[ModelRequest], places: Sequence[tuple[int, int]]
    ) -> tuple[list[Any], bool]:
        """Where each request's bytes go: the client's own memory where they fit, else ours.

        And whether the device can write all of it by itself.
        """
        targets: list[Any] = []
        are_direct = True
        ours = None
        for request, (begin, end) in zip(requests, places, strict=True):
            span = None if request.device is None else request.device.places.get(name)
            if span is not None and end - begin <= span.size:
                targets.append(span._replace(size=end - begin))
                continue
            place = request.places.get(name)
            if place is not None and end - begin <= place.nbytes:
                are_direct = are_direct and self._clients.is_direct(place)
                targets.append(place[: end - begin])
                continue
            if ours is None:
                ours, is_pinned = self._results.take(name, places[-1][1])
                are_direct = are_direct and is_pinned
            targets.append(ours[begin:end])
        return targets, are_direct

    def copy(self, flight: Flight) -> None:
        """Let the copies out follow the execution."""
        self._streams.copy_out_after(flight.buffers.executed)
        for name, parts in flight.parts.items():
            if not self._outputs[name].is_host:
                self._copy_out(name, parts, flight)
        self._streams.mark_copied_out(flight.buffers.copied_out)
        flight.is_copied_out = True

    def _copy_out(self, name: str, parts: Sequence[Part], flight: Flight) -> None:
        """One output, each part to its target; targets that lie side by side are one copy."""
        if name in flight.bound:
            return
        device = flight.buffers.device.room(name, parts[-1].end)
        copies: list[tuple[int, int, int]] = []
        last = None
        for part in parts:
            begin, size = part.begin, part.end - part.begin
            if not size:
                continue
            if isinstance(part.target, DeviceSpan):
                if part.target.event is not None:
                    self._streams.copy_out_after(part.target.event)
                self._streams.copy_out_on_device(part.target.address, device + begin, size)
                continue
            target, memory = address_of(part.target), owner(part.target)
            if copies and memory is last:  # one copy may not reach into another registration
                before, first, length = copies[-1]
                if (before + length, first + length) == (target, begin):
                    copies[-1] = before, first, length + size
                    continue
            last = memory
            copies.append((target, begin, size))
        for target, begin, size in copies:
            self._streams.copy_out(target, device + begin, size)


def _told(binding: Binding, shape: Shape, content: bytes, flight: Flight) -> list[Part]:
    """A shape tensor, which is the same for all; but of joined requests the first value is each
    one's own batch."""
    if flight.rows is None:
        return [Part(shape, 0, len(content), np.frombuffer(content, np.uint8))]
    parts = []
    for count in flight.rows:
        values = np.frombuffer(content, NUMPY_NAME[binding.datatype]).copy()
        values[:1] = count
        parts.append(Part(shape, 0, len(content), values.view(np.uint8)))
    return parts

"""A batch on its way to the device and back: what is known of it so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from naiad.worker.backends.base import ModelRequest
from naiad.worker.backends.tensorrt.memory import BufferSet
from naiad.worker.backends.tensorrt.profiles import Shape


def cuts(rows: Sequence[int], row_bytes: int) -> list[tuple[int, int]]:
    """(first byte, one beyond the last) of each request in a batch's buffer."""
    return list(pairwise(accumulate((count * row_bytes for count in rows), initial=0)))


class Part(NamedTuple):
    """One request's share of an output: bytes of the batch's buffer, and where they go: an array,
    or a DeviceSpan."""

    shape: Shape
    begin: int
    end: int
    target: Any


@dataclass(eq=False, slots=True)
class Flight:
    """A batch on its way, from `DataPath.stage` on. Without `rows` it is one request."""

    requests: Sequence[ModelRequest]
    rows: Sequence[int] | None
    shapes: Mapping[str, Shape]
    buffers: BufferSet
    is_launched: bool = False
    is_copied_out: bool = False
    """Whether the copies of its results are under way."""
    results: dict[str, tuple[Shape, bytes | None]] = field(default_factory=dict)
    """Of each output the whole shape, and the bytes of those that lie in host memory."""
    padding: int = 0
    """Rows beyond those of the requests, in a graph for more."""
    parts: dict[str, list[Part]] = field(default_factory=dict)
    bound: dict[str, int] = field(default_factory=dict)
    """Addresses of tensors that are read and written in the client's own device memory."""

"""What executes a batch on the device: the seam between the path of the data and an engine.

The path of the data (data_path.py) moves bytes, and knows of the engine only this. A TensorRT
context is one (context.py); any other object that reads its inputs and writes its outputs at the
addresses it is told, in the order of a stream, can take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from naiad.worker.backends.tensorrt.profiles import Shape

Room = Callable[[str, int], int]
"""(tensor, bytes) → the address of so much device memory. Raises ModelError when there is none."""


class Executor(Protocol):
    """One engine in one profile, on one device; all calls on one thread.

    In the order: `set_shapes`, `bind` for each input and each output, `start`. What cannot be done
    is a ModelError.
    """

    def set_shapes(self, shapes: Mapping[str, Shape], *, have_values_changed: bool) -> None:
        """The inputs' shapes. `have_values_changed`: shape tensors may hold other values now."""
        ...

    def shape(self, name: str) -> Shape:
        """Of an output, by the shapes of the inputs; -1 where only the execution tells."""
        ...

    def size_max(self, name: str) -> int:
        """Bytes that an output takes at most, whatever inputs the profile admits; below 1: unknown.

        What an output of known `shape` takes is told by that alone.
        """
        ...

    def bind(self, name: str, address: int) -> None:
        """Where an input is read, or an output written, from the next `start` on."""
        ...

    def allocate_with(self, name: str, room: Room) -> None:
        """Ask `room` for the memory of an output whose shape only the execution tells."""
        ...

    def start(self, stream: int) -> None:
        """Give one execution to the stream, and return without waiting for it."""
        ...

    def told_shape(self, name: str) -> Shape:
        """Of an output that has a `room`, once an execution is done."""
        ...

    def close(self) -> None: ...

"""The memory of one instance: device buffers by tensor, pinned memory for what comes and goes.

A device buffer is reserved at its tensor's maximum over all profiles (one profile of an instance
runs at a time), allocated once and used for every batch; only outputs whose size depends on the
data, or is larger than the engine told, may grow later, and move then.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from naiad.shm.layout import power_of_two_up
from naiad.worker.backends.base import InstanceLost
from naiad.worker.backends.tensorrt.cuda import Cuda
from naiad.worker.backends.tensorrt.executor import Room
from naiad.worker.backends.tensorrt.streams import Streams

if TYPE_CHECKING:
    from naiad.worker.backends.tensorrt.cuda import Bytes

PINNED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one instance's results together. Outputs beyond are returned in ordinary memory, which costs
CUDA one more copy."""
STAGING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one set of buffers, for inputs that come inside messages. Larger ones are copied from where
they are, through CUDA's own staging."""
BUFFER_BYTES_MIN: Final = 256
"""TensorRT wants an address even for an empty tensor."""


class DeviceBuffers:
    """Addresses by tensor."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._wanted: dict[str, int] = {}
        self._held: dict[str, tuple[int, int]] = {}
        self.moves = 0
        """How often an address that was given out has ended; a graph may hold it still."""

    def reserve(self, name: str, size: int) -> None:
        """`allocate` is to make room for this many bytes at least."""
        self._wanted[name] = max(size, self._wanted.get(name, BUFFER_BYTES_MIN))

    def allocate(self) -> None:
        """All that is reserved. Raises ModelError, which names the tensor and both sizes."""
        for name, size in self._wanted.items():
            self.room(name, size)

    def room(self, name: str, size: int) -> int:
        """The tensor's address, with `size` bytes behind it. What was in a smaller one is lost."""
        held = self._held.get(name)
        if held is not None:
            address, has = held
            if size <= has:
                return address
            self.moves += 1
            self._cuda.free(address)
            del self._held[name]
        size = max(size, self._wanted.get(name, BUFFER_BYTES_MIN))
        address = self._cuda.allocate(size, f"the buffer of tensor '{name}'")
        self._held[name] = address, size
        return address

    def close(self) -> None:
        while self._held:
            self._cuda.free(self._held.popitem()[1][0])


class PinnedBlocks:
    """Host memory by tensor that the device reads and writes by itself, as far as there is room."""

    def __init__(self, cuda: Cuda, bytes_max: int) -> None:
        self._cuda = cuda
        self._left = bytes_max
        self._blocks: dict[str, Any] = {}
        self._addresses: list[int] = []

    def add(self, name: str, size: int) -> None:
        address = self._cuda.allocate_pinned(size) if size <= self._left else None
        if address is not None:
            self._left -= size
            self._addresses.append(address)
            self._blocks[name] = (ctypes.c_uint8 * size).from_address(address)

    def view(self, name: str, size: int) -> Bytes | None:
        """The first bytes of a block; None where there is none, or not so large a one."""
        block = self._blocks.get(name)
        if block is None or size > len(block):
            return None
        # Straight from the block: every slice of it then keeps this array, whose life is watched.
        return np.frombuffer(block, np.uint8, size)

    def close(self) -> None:
        """Free the blocks; views of them are dangling from here on."""
        self._blocks.clear()
        while self._addresses:
            self._cuda.free_pinned(self._addresses.pop())


class ResultMemory:
    """Host memory for outputs that no client gave a place for.

    A pinned block per output, lent to one batch at a time: while a view of it lives, and for
    results that are larger, there is ordinary memory.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._blocks = PinnedBlocks(cuda, PINNED_BYTES_MAX)
        self._lent: dict[str, weakref.ref[Bytes]] = {}

    def pin(self, name: str, size: int) -> None:
        """Keep a pinned block for this output, as far as there is room."""
        self._blocks.add(name, size)

    def take(self, name: str, size: int) -> tuple[Bytes, bool]:
        """Memory of this size, and whether it is pinned."""
        lent = self._lent.get(name)
        view = self._blocks.view(name, size) if lent is None or lent() is None else None
        if view is None:
            return np.empty(size, np.uint8), False
        self._lent[name] = weakref.ref(view)
        return view, True

    def close(self) -> None:
        self._blocks.close()


class BufferSet:
    """What one batch on its way needs: device memory, staging for its inputs, events.

    An instance has two, so that the next batch can be brought in while one is executed.
    """

    def __init__(self, streams: Streams) -> None:
        self.device = DeviceBuffers(streams.cuda)
        self.staging = PinnedBlocks(streams.cuda, STAGING_BYTES_MAX)
        self.begun = streams.new_clock()
        """Before the copies in, which `copied_in` is after."""
        self.copied_in = streams.new_clock()
        self.executed = streams.new_event()
        self.copied_out = streams.new_event()
        self.is_taken = False
        self._streams = streams
        self._staged: dict[str, int] = {}

    def reserve_input(self, name: str, size: int) -> None:
        self.device.reserve(name, size)
        self._staged[name] = max(1, size, self._staged.get(name, 0))

    def reserve_output(self, name: str, size: int) -> None:
        self.device.reserve(name, size)

    def allocate(self) -> None:
        """All that is reserved. Raises ModelError, which names the tensor and both sizes."""
        self.device.allocate()
        for name, size in self._staged.items():
            self.staging.add(name, size)

    def close(self) -> None:
        self.device.close()
        self.staging.close()
        for event in (self.begun, self.copied_in, self.executed, self.copied_out):
            self._streams.drop_event(event)


def output_allocator(trt: Any, room: Room) -> Any:
    """An allocator for one output whose shape only the execution tells.

    `shape` is that of the last execution. TensorRT calls it from C++, where an exception must not
    go: `fault` holds it, and the null address makes the execution fail.
    """

    class Growing(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] | None = None
            self.fault: BaseException | None = None

        def reallocate_output(
            self, tensor_name: str, memory: int, size: int, alignment: int
        ) -> int:
            try:
                return room(tensor_name, power_of_two_up(max(size, BUFFER_BYTES_MIN)))
            except (Exception, InstanceLost) as fault:
                self.fault = fault
                return 0

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Growing()

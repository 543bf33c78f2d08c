"""Clients' shared memory, registered with CUDA, so that the device reads and writes it by itself.

Each mapping is registered when a batch first touches it, and unregistered before it is unmapped:
when its region is forgotten, its owner is dead, or the worker makes room. Batches keep views of
what they use, so no copy is under way then. Where registering fails, bytes go through staging.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

import numpy as np

from naiad.shm.mapped_memory import MappedMemory
from naiad.worker.backends.base import DeviceSpan
from naiad.worker.backends.tensorrt.cuda import Cuda

REGISTERED_BYTES_MAX: Final = 32 << 30
"""Of one worker: what is registered is never swapped out, and counts for each worker that does."""
SPARSE_BYTES_MAX: Final = 256 << 20
"""Of one worker: what registering may make real that clients have not written. A sparse segment of
gigabytes costs its owner nothing, and must not cost the server that."""
BINDING_ALIGNMENT_BYTES: Final = 256
"""What TensorRT may rely on of an address that it is given; cudaMalloc gives it."""

_log = logging.getLogger(__name__)


class ClientMemory:
    """Which memory is registered. `instance_name` is for the log."""

    def __init__(self, cuda: Cuda, instance_name: str) -> None:
        self._cuda = cuda
        self._instance_name = instance_name
        self._known: dict[int, int] = {}
        """Address by id of the mapping, 0 where it could not be registered."""
        self._bytes = 0
        self._sparse_bytes = 0
        self._has_warned = False

    def is_direct(self, buffer: Any) -> bool:
        """Whether the device can read (and write, if this process can) these bytes by itself."""
        memory = owner(buffer)
        if type(memory) is not MappedMemory:
            return False
        address = self._known.get(id(memory))
        if address is None:
            address = self._register(memory)
        return address != 0

    def is_bindable(self, span: DeviceSpan) -> bool:
        """Whether an engine can read or write these bytes where they are."""
        return span.device == self._cuda.device and not span.address % BINDING_ALIGNMENT_BYTES

    def _register(self, memory: MappedMemory) -> int:
        size = len(memory)
        sparse = memory.missing_bytes()
        if self._sparse_bytes + sparse > SPARSE_BYTES_MAX:
            self._warn(
                size,
                f"{sparse} of these are not written, and {self._sparse_bytes} such bytes are "
                f"registered already, of SPARSE_BYTES_MAX ({SPARSE_BYTES_MAX}); allocate it "
                "(posix_fallocate), or make it smaller",
            )
            return 0  # asked again: its owner may write it
        address = address_of(memory)
        if self._bytes + size > REGISTERED_BYTES_MAX:
            fault = (
                f"{self._bytes} bytes are registered already, of REGISTERED_BYTES_MAX "
                f"({REGISTERED_BYTES_MAX})"
            )
        else:
            is_read_only = memoryview(memory).readonly
            fault = self._cuda.register(address, size, is_read_only=is_read_only)
        if fault:
            self._warn(size, fault)
            address = 0
        else:
            self._bytes += size
            self._sparse_bytes += sparse
        self._known[id(memory)] = address
        memory.before_unmap(partial(self._leave, id(memory), size, sparse))
        return address

    def _warn(self, size: int, fault: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: a client's shared memory of %d bytes is not registered with CUDA: %s; its "
                "bytes go through a staging buffer (told once)",
                self._instance_name,
                size,
                fault,
            )

    def _leave(self, ident: int, size: int, sparse: int) -> None:
        """Called by the memory, just before it is unmapped."""
        address = self._known.pop(ident, 0)
        if address:
            self._bytes -= size
            self._sparse_bytes -= sparse
            self._unregister(address)

    def close(self) -> None:
        """Unregister all; the memory may live on."""
        while self._known:
            _, address = self._known.popitem()
            if address:
                self._unregister(address)

    def _unregister(self, address: int) -> None:
        fault = self._cuda.unregister(address)
        if fault:
            _log.warning("%s: unregistering shared memory: %s", self._instance_name, fault)


def owner(buffer: Any) -> Any:
    """The object whose memory a view, or an array over a view, shows."""
    while True:
        if isinstance(buffer, memoryview):
            buffer = buffer.obj
        elif isinstance(buffer, np.ndarray) and buffer.base is not None:
            buffer = buffer.base
        else:
            return buffer


def address_of(buffer: Any) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address

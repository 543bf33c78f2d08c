"""CUDA's calls by name, each of them checked: `gpu.call("cudaMalloc", size)`.

All calls of the script to CUDA go through `Gpu.call`, with their names written out, so that a test
can hold each of them to the real signatures. Owns nothing on the device.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from time import perf_counter
from typing import Any, Final

import numpy as np

from gpu_checks.segments import SEGMENT_PREFIX, SHM

NOT_READY: Final = 600


class CudaFailed(Exception):
    """A call that answered with an error."""

    def __init__(self, name: str, error: Any) -> None:
        self.code = int(error)
        super().__init__(f"{name}: error {self.code} ({getattr(error, 'name', error)})")


class Gpu:
    """The first GPU that this process sees, made current."""

    def __init__(self) -> None:
        self.runtime: Any = import_module("cuda.bindings.runtime")
        self.driver: Any = import_module("cuda.bindings.driver")
        self.call("cudaSetDevice", 0)
        self.call("cudaFree", 0)  # makes the context

    def call(self, name: str, *arguments: Any) -> Any:
        """What the call returns behind its error. Raises CudaFailed."""
        module = self.runtime if name.startswith("cuda") else self.driver
        error, *values = getattr(module, name)(*arguments)
        if int(error):
            raise CudaFailed(name, error)
        return values[0] if len(values) == 1 else tuple(values)

    def capability(self) -> str:
        """Such as "90"."""
        kinds = self.runtime.cudaDeviceAttr
        major = self.call("cudaDeviceGetAttribute", kinds.cudaDevAttrComputeCapabilityMajor, 0)
        minor = self.call("cudaDeviceGetAttribute", kinds.cudaDevAttrComputeCapabilityMinor, 0)
        return f"{major}{minor}"

    # --- Memory and streams ---------------------------------------------------------------------

    def malloc(self, size: int) -> int:
        return int(self.call("cudaMalloc", size))

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self.call("cudaFree", address)

    def stream(self) -> Any:
        return self.call("cudaStreamCreateWithPriority", self.runtime.cudaStreamNonBlocking, 0)

    def event(self, *, interprocess: bool = False, timing: bool = False) -> Any:
        flags = 0 if timing else self.runtime.cudaEventDisableTiming
        if interprocess:
            flags |= self.runtime.cudaEventInterprocess
        return self.call("cudaEventCreateWithFlags", flags)

    def record(self, event: Any, stream: Any) -> None:
        self.call("cudaEventRecord", event, stream)

    def is_reached(self, event: Any) -> bool:
        try:
            self.call("cudaEventQuery", event)
        except CudaFailed as error:
            if error.code != NOT_READY:
                raise
            self.runtime.cudaGetLastError()  # "not ready" stays there
            return False
        return True

    def wait_for(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on waits for the event."""
        self.call("cudaStreamWaitEvent", stream, event, 0)

    def finish(self, stream: Any) -> None:
        self.call("cudaStreamSynchronize", stream)

    def to_device(self, device: int, host: int, size: int, stream: Any) -> None:
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.call("cudaMemcpyAsync", device, host, size, kind, stream)

    def to_host(self, host: int, device: int, size: int, stream: Any) -> None:
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self.call("cudaMemcpyAsync", host, device, size, kind, stream)

    @contextmanager
    def timed(self, stream: Any) -> Iterator[list[float]]:
        """The list holds, afterwards, the milliseconds that the device took for what was given."""
        begin, end = self.event(timing=True), self.event(timing=True)
        found: list[float] = []
        self.record(begin, stream)
        yield found
        self.record(end, stream)
        self.finish(stream)
        found.append(float(self.call("cudaEventElapsedTime", begin, end)))
        self.call("cudaEventDestroy", begin)
        self.call("cudaEventDestroy", end)

    # --- Host memory ----------------------------------------------------------------------------

    @contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        """What cudaHostAlloc gives: the plain way to memory that DMA can use."""
        address = int(self.call("cudaHostAlloc", size, self.runtime.cudaHostAllocDefault))
        try:
            yield address
        finally:
            self.call("cudaFreeHost", address)

    @contextmanager
    def registered(self, address: int, size: int) -> Iterator[None]:
        self.call("cudaHostRegister", address, size, self.runtime.cudaHostRegisterPortable)
        try:
            yield
        finally:
            self.call("cudaHostUnregister", address)


class Segment:
    """A POSIX shared memory segment, as a client of naiad has."""

    def __init__(self, size: int, name: str = "", kind: type[mmap.mmap] = mmap.mmap) -> None:
        """A new one, or with `name` one that is there, mapped by `kind`."""
        self.name = name or f"{SEGMENT_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self.size = size
        flags = os.O_RDWR if name else os.O_RDWR | os.O_CREAT | os.O_EXCL
        fd = os.open(f"{SHM}/{self.name}", flags, 0o600)
        try:
            if not name:
                os.posix_fallocate(fd, 0, size)
            self.memory = kind(fd, size)
        finally:
            os.close(fd)
        self._view = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._view)

    def unlink(self) -> None:
        os.unlink(f"{SHM}/{self.name}")


@contextmanager
def segment(size: int, kind: type[mmap.mmap] = mmap.mmap) -> Iterator[Segment]:
    """A segment that is gone afterwards."""
    made = Segment(size, kind=kind)
    try:
        yield made
    finally:
        made.unlink()


def floats_at(address: int, count: int) -> Any:
    """FP32 numbers in memory that the caller keeps."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def host_microseconds(begin: float) -> float:
    """Since `perf_counter` said `begin`."""
    return (perf_counter() - begin) * 1e6

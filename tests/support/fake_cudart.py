"""CUDA's runtime without a GPU: what cuda.bindings.runtime is to the TensorRT backend.

Device memory is host memory of its own kind: copies are checked against what is allocated, and new
memory is full of POISON. Streams are threads that work in order, so that whoever does not wait sees
it. `device` is the one GPU: tests set what it has, and what goes wrong. Held to the real module's
signatures by tests/contract/backends/test_cuda_api.py.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import queue
import threading
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Any

POISON = 0xCD
ALIGNMENT = 256
STICKY = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})

cudaStreamNonBlocking = 1
cudaEventDisableTiming = 2
cudaHostAllocDefault = 0


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100
    cudaErrorInvalidDevice = 101
    cudaErrorNotReady = 600
    cudaErrorIllegalAddress = 700
    cudaErrorAssert = 710
    cudaErrorMisalignedAddress = 716
    cudaErrorInvalidAddressSpace = 717
    cudaErrorLaunchFailure = 719
    cudaErrorNotSupported = 801


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaDeviceAttr(IntEnum):
    cudaDevAttrComputeCapabilityMajor = 75
    cudaDevAttrComputeCapabilityMinor = 76


class Trap(Exception):
    """What a kernel does that goes wrong: every later call answers with this error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class cudaStream_t:
    """A thread that does what it is given in order."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __int__(self) -> int:
        return self._number

    def add(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def drain(self) -> None:
        done = threading.Event()
        self.add(done.set)
        assert done.wait(30)

    def end(self) -> None:
        self._tasks.put(None)
        self._thread.join(30)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Trap as trap:
                device.sticky = trap.code


class cudaEvent_t:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.done.set()


class Device:
    """The GPU and what is on it."""

    def __init__(self) -> None:
        self.count = 1
        self.driver_error = 0
        self.capability = (9, 0)
        self.total = 1 << 30
        self.sticky = 0
        self.last = 0
        self.calls: Counter[str] = Counter()
        self.streams: dict[int, cudaStream_t] = {}
        self.memory: dict[int, tuple[int, Any]] = {}
        self.pinned: dict[int, tuple[int, Any]] = {}
        self._failures: dict[str, list[tuple[int, int]]] = {}
        self._numbers = itertools.count(1000)

    def fail(self, function: str, code: int, *, after: int = 0) -> None:
        """The call of this name after so many good ones fails with the code."""
        self._failures.setdefault(function, []).append((self.calls[function] + after + 1, code))

    def failure(self, function: str) -> int:
        self.calls[function] += 1
        due = [code for at, code in self._failures.get(function, []) if at == self.calls[function]]
        return due[0] if due else 0

    @property
    def used(self) -> int:
        return sum(size for size, _ in self.memory.values())

    def holds(self, address: int, size: int) -> bool:
        """Whether these bytes lie within one allocation of device memory."""
        return _within(self.memory, address, size)

    def new_number(self) -> int:
        return next(self._numbers)

    def close(self) -> None:
        for stream in self.streams.values():
            stream.end()


device = Device()


def reset() -> Device:
    """A new device, with nothing on it."""
    global device
    device.close()
    device = Device()
    return device


def _gpu() -> Device:
    """For functions that call a number `device`."""
    return device


def _within(memory: dict[int, tuple[int, Any]], address: int, size: int) -> bool:
    return any(a <= address and address + size <= a + has for a, (has, _) in memory.items())


def _call(values: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An API function: it fails where the device says so, and answers (error, *values)."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> tuple[Any, ...]:
            code = device.failure(function.__name__) or device.sticky
            if not code:
                found = function(*arguments)
                if isinstance(found, cudaError_t):
                    code = int(found)
                else:
                    return (cudaError_t.cudaSuccess, *(found if values else ()))
            if code in STICKY:
                device.sticky = code
            device.last = code
            return (cudaError_t(code), *[None] * values)

        return call

    return decorate


def _allocated(memory: dict[int, tuple[int, Any]], size: int) -> int:
    buffer = ctypes.create_string_buffer(size + ALIGNMENT)
    address = ctypes.addressof(buffer) + -ctypes.addressof(buffer) % ALIGNMENT
    ctypes.memset(address, POISON, size)
    memory[address] = size, buffer
    return address


@_call(1)
def cudaGetDeviceCount() -> Any:
    if device.driver_error:
        return cudaError_t(device.driver_error)
    return (device.count,) if device.count else cudaError_t.cudaErrorNoDevice


@_call(0)
def cudaSetDevice(device: int) -> Any:
    return None


@_call(1)
def cudaDeviceGetAttribute(attr: cudaDeviceAttr, device: int) -> Any:
    return (_gpu().capability[attr - 75],)


@_call(2)
def cudaMemGetInfo() -> Any:
    return device.total - device.used, device.total


@_call(1)
def cudaMalloc(size: int) -> Any:
    if size > device.total - device.used:
        return cudaError_t.cudaErrorMemoryAllocation
    return (_allocated(device.memory, size),)


@_call(0)
def cudaFree(devPtr: int) -> Any:
    for stream in device.streams.values():
        stream.drain()
    return None if device.memory.pop(devPtr, None) else cudaError_t.cudaErrorInvalidValue


@_call(1)
def cudaHostAlloc(size: int, flags: int) -> Any:
    return (_allocated(device.pinned, size),)


@_call(0)
def cudaFreeHost(ptr: int) -> Any:
    return None if device.pinned.pop(ptr, None) else cudaError_t.cudaErrorInvalidValue


@_call(1)
def cudaStreamCreateWithFlags(flags: int) -> Any:
    stream = cudaStream_t(device.new_number())
    device.streams[int(stream)] = stream
    return (stream,)


@_call(0)
def cudaStreamDestroy(stream: cudaStream_t) -> Any:
    device.streams.pop(int(stream)).end()


@_call(1)
def cudaEventCreateWithFlags(flags: int) -> Any:
    return (cudaEvent_t(),)


@_call(0)
def cudaEventRecord(event: cudaEvent_t, stream: cudaStream_t) -> Any:
    event.done.clear()
    stream.add(event.done.set)


@_call(0)
def cudaEventQuery(event: cudaEvent_t) -> Any:
    return None if event.done.is_set() else cudaError_t.cudaErrorNotReady


@_call(0)
def cudaEventDestroy(event: cudaEvent_t) -> Any:
    return None


@_call(0)
def cudaMemcpyAsync(
    dst: int, src: int, count: int, kind: cudaMemcpyKind, stream: cudaStream_t
) -> Any:
    """Pageable host memory is read, or written, before this returns, as in CUDA."""
    to_device = kind == cudaMemcpyKind.cudaMemcpyHostToDevice
    host, on_device = (src, dst) if to_device else (dst, src)
    if not device.holds(on_device, count) or device.holds(host, count):
        return cudaError_t.cudaErrorInvalidValue
    is_pinned = _within(device.pinned, host, count)
    if to_device and not is_pinned:
        taken = ctypes.string_at(src, count)
        stream.add(lambda: _move(dst, taken, count))
        return None
    stream.add(lambda: _move(dst, src, count))
    if not is_pinned:
        stream.drain()
    return None


def _move(target: int, source: int | bytes, count: int) -> None:
    if not device.sticky:
        ctypes.memmove(target, source, count)


def cudaGetLastError() -> tuple[cudaError_t]:
    code, device.last = device.sticky or device.last, 0
    return (cudaError_t(code),)


def cudaGetErrorString(error: cudaError_t) -> tuple[cudaError_t, bytes]:
    return cudaError_t.cudaSuccess, error.name.removeprefix("cudaError").lower().encode()

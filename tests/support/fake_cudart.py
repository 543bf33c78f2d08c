"""CUDA's runtime without a GPU: what cuda.bindings.runtime is to the TensorRT backend.

Device memory is host memory of its own kind: copies are checked against what is allocated, and new
memory is full of POISON. Streams work in order, and against those who do not wait for them
(fake_streams.py). `device` is the one GPU: tests set what it has, and what goes wrong; of other
processes they see the copies in the file FAKE_CUDART_JOURNAL. Held to the real module's
signatures by tests/contract/backends/test_cuda_api.py. One long file, as what it stands in for is
one module.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

from support.fake_streams import Entry, Order, Reached, Stream, Threads, Timing, Trap

POISON = 0xCD
ALIGNMENT = 256
STICKY = frozenset(
    {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}
)

cudaStreamNonBlocking = 1
cudaEventDefault = 0
cudaEventDisableTiming = 2
cudaHostAllocDefault = 0
cudaHostRegisterPortable = 1
cudaHostRegisterReadOnly = 8
PRIORITY_LEAST, PRIORITY_GREATEST = 0, -5


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100
    cudaErrorInvalidDevice = 101
    cudaErrorInvalidResourceHandle = 400
    cudaErrorNotReady = 600
    cudaErrorIllegalAddress = 700
    cudaErrorAssert = 710
    cudaErrorMisalignedAddress = 716
    cudaErrorInvalidAddressSpace = 717
    cudaErrorHostMemoryAlreadyRegistered = 712
    cudaErrorHostMemoryNotRegistered = 713
    cudaErrorLaunchFailure = 719
    cudaErrorNotSupported = 801
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3


class cudaStreamCaptureMode(IntEnum):
    cudaStreamCaptureModeThreadLocal = 1


class cudaDeviceAttr(IntEnum):
    cudaDevAttrComputeCapabilityMajor = 75
    cudaDevAttrComputeCapabilityMinor = 76


class cudaStream_t(Stream):
    def __init__(self, number: int, priority: int, flags: int) -> None:
        super().__init__(device.timing, _trapped)
        self._number = number
        self.priority = priority
        self.flags = flags
        device.timing.begun(self)

    def __int__(self) -> int:
        return self._number


def _trapped(code: int) -> None:
    device.sticky = code


class cudaEvent_t:
    """Each recording is an event of its own: who waits for an earlier one sees that reached."""

    def __init__(self, flags: int = cudaEventDisableTiming) -> None:
        self.flags = flags
        self.done = Reached()


class Graph:
    """What was captured."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries


class Device:
    """The GPU and what is on it. `timing`: when it does what it was given."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.count = 1
        self.driver_error = 0
        self.capability = (9, 0)
        self.total = 1 << 30
        self.sticky = 0
        self.last = 0
        self.calls: Counter[str] = Counter()
        self.looks = 0
        """Calls of cudaEventQuery that were too early: how many depends on the time."""
        self.streams: dict[int, cudaStream_t] = {}
        self.memory: dict[int, tuple[int, Any]] = {}
        self.pinned: dict[int, tuple[int, Any]] = {}
        self.registered: dict[int, tuple[int, Any]] = {}
        self.read_only: set[int] = set()
        self.events: set[cudaEvent_t] = set()
        self.graphs: set[Graph] = set()
        """Those of both kinds that were not destroyed."""
        self.copies: list[tuple[str, int, int]] = []
        """("in" or "out", address on the host, bytes) of each, in the order of their calls."""
        self.moves: list[int] = []
        """The bytes of each copy that was done."""
        self._failures: dict[str, list[tuple[int, int]]] = {}
        self._numbers = itertools.count(1000)

    def fail(self, function: str, code: int, *, after: int = 0) -> None:
        """The call of this name after so many good ones fails with the code."""
        self._failures.setdefault(function, []).append((self.calls[function] + after + 1, code))

    def failure(self, function: str) -> int:
        self.calls[function] += 1
        due = [code for at, code in self._failures.get(function, []) if at == self.calls[function]]
        return due[0] if due else 0

    def is_due(self, function: str) -> bool:
        """Whether the next call of this name will fail."""
        return any(at == self.calls[function] + 1 for at, _ in self._failures.get(function, []))

    @property
    def used(self) -> int:
        return sum(size for size, _ in self.memory.values())

    def holds(self, address: int, size: int) -> bool:
        """Whether these bytes lie within one allocation of device memory."""
        return _within(self.memory, address, size)

    def reaches(self, address: int, size: int) -> bool:
        """Whether it reads and writes these bytes of the host by itself."""
        return _within(self.pinned, address, size) or _within(self.registered, address, size)

    def new_number(self) -> int:
        return next(self._numbers)

    def settle(self) -> None:
        """Wait until the streams have nothing to do."""
        for stream in list(self.streams.values()):
            stream.drain()

    def close(self) -> None:
        for stream in list(self.streams.values()):
            stream.end()


device = Device(Threads())
_registered_before: set[int] = set()
"""Addresses that are registered on former devices."""


def reset(timing: Timing | None = None) -> Device:
    """A new device, with nothing on it; streams work as late as they may if nobody says when.

    No real device is ever replaced: what is registered on this one stays so until its owner, who
    may be found by the garbage collection at any time, takes it back.
    """
    global device
    device.close()
    _registered_before.update(device.registered)
    device = Device(Order() if timing is None else timing)
    return device


def _gpu() -> Device:
    """For functions that call a number `device`."""
    return device


def _within(memory: dict[int, tuple[int, Any]], address: int, size: int) -> bool:
    return any(a <= address and address + size <= a + has for a, (has, _) in [*memory.items()])


def is_mapped(address: int) -> bool:
    """Whether this process has memory there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= address < end:
            return True
    return False


def _call(values: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An API function: it fails where the device says so, and answers (error, *values)."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> tuple[Any, ...]:
            if function.__name__ == "cudaStreamEndCapture" and device.is_due(function.__name__):
                arguments[0].captured = None  # whatever it answers
            code = device.failure(function.__name__) or device.sticky or _uncapturable(function)
            if not code:
                found = function(*arguments)
                device.timing.called()
                if isinstance(found, cudaError_t):
                    code = int(found)
                else:
                    answer = found if values else ()
                    assert len(answer) == values
                    return (cudaError_t.cudaSuccess, *answer)
            if code in STICKY:
                device.sticky = code
            device.last = code
            return (cudaError_t(code), *[None] * values)

        call.value_count = values  # type: ignore[attr-defined]
        return call

    return decorate


UNCAPTURABLE = {"cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaEventQuery"}


def _uncapturable(function: Callable[..., Any]) -> int:
    """What must not be called during a capture breaks it."""
    capturing = [one for one in device.streams.values() if one.captured is not None]
    if not capturing or function.__name__ not in UNCAPTURABLE:
        return 0
    for stream in capturing:
        stream.is_capture_broken = True
    return cudaError_t.cudaErrorStreamCaptureUnsupported


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


@_call(0)
def cudaHostRegister(ptr: int, size: int, flags: int) -> Any:
    if any(a < ptr + size and ptr < a + has for a, (has, _) in device.registered.items()):
        return cudaError_t.cudaErrorHostMemoryAlreadyRegistered
    device.registered[ptr] = size, None
    if flags & cudaHostRegisterReadOnly:
        device.read_only.add(ptr)
    return None


@_call(0)
def cudaHostUnregister(ptr: int) -> Any:
    if device.registered.pop(ptr, None) is None and ptr not in _registered_before:
        return cudaError_t.cudaErrorHostMemoryNotRegistered
    _registered_before.discard(ptr)
    device.read_only.discard(ptr)
    assert is_mapped(ptr), "it was unmapped while it was registered"
    return None


@_call(2)
def cudaDeviceGetStreamPriorityRange() -> Any:
    return PRIORITY_LEAST, PRIORITY_GREATEST


@_call(1)
def cudaStreamCreateWithPriority(flags: int, priority: int) -> Any:
    stream = cudaStream_t(device.new_number(), priority, flags)
    device.streams[int(stream)] = stream
    return (stream,)


@_call(0)
def cudaStreamDestroy(stream: cudaStream_t) -> Any:
    device.streams.pop(int(stream)).end()


@_call(0)
def cudaStreamWaitEvent(stream: cudaStream_t, event: cudaEvent_t, flags: int) -> Any:
    stream.wait_for(event.done)


@_call(1)
def cudaEventCreateWithFlags(flags: int) -> Any:
    event = cudaEvent_t(flags)
    device.events.add(event)
    return (event,)


@_call(0)
def cudaEventRecord(event: cudaEvent_t, stream: cudaStream_t) -> Any:
    event.done = stream.record()


@_call(0)
def cudaEventQuery(event: cudaEvent_t) -> Any:
    """It tells of what went wrong meanwhile."""
    return looked_at(event)


def looked_at(event: cudaEvent_t) -> Any:
    is_reached = device.timing.looked(event.done)
    if device.sticky:
        return cudaError_t(device.sticky)
    if is_reached:
        return None
    device.looks += 1
    return cudaError_t.cudaErrorNotReady


@_call(1)
def cudaEventElapsedTime(start: cudaEvent_t, end: cudaEvent_t) -> Any:
    if start.flags & cudaEventDisableTiming or end.flags & cudaEventDisableTiming:
        return cudaError_t.cudaErrorInvalidValue
    if not (start.done.is_set() and end.done.is_set()):
        return cudaError_t.cudaErrorNotReady
    return ((end.done.at_s - start.done.at_s) * 1e3,)


@_call(0)
def cudaEventDestroy(event: cudaEvent_t) -> Any:
    device.events.remove(event)


@_call(0)
def cudaStreamBeginCapture(stream: cudaStream_t, mode: cudaStreamCaptureMode) -> Any:
    stream.captured, stream.is_capture_broken = [], False


@_call(1)
def cudaStreamEndCapture(stream: cudaStream_t) -> Any:
    entries, stream.captured = stream.captured, None
    if stream.is_capture_broken:
        return cudaError_t.cudaErrorStreamCaptureInvalidated
    graph = Graph(entries or [])
    device.graphs.add(graph)
    return (graph,)


@_call(1)
def cudaGraphInstantiate(graph: Graph, flags: int) -> Any:
    found = Graph(graph.entries)
    device.graphs.add(found)
    return (found,)


@_call(0)
def cudaGraphUpload(graphExec: Graph, stream: cudaStream_t) -> Any:
    return None


@_call(0)
def cudaGraphLaunch(graphExec: Graph, stream: cudaStream_t) -> Any:
    for entry in graphExec.entries:
        stream.give(entry)


@_call(0)
def cudaGraphExecDestroy(graphExec: Graph) -> Any:
    device.graphs.remove(graphExec)


@_call(0)
def cudaGraphDestroy(graph: Graph) -> Any:
    device.graphs.remove(graph)


@_call(0)
def cudaMemcpyAsync(
    dst: int, src: int, count: int, kind: cudaMemcpyKind, stream: cudaStream_t
) -> Any:
    """Pageable host memory is read, or written, before this returns, as in CUDA."""
    if kind == cudaMemcpyKind.cudaMemcpyDeviceToDevice:
        if not (device.holds(dst, count) and device.holds(src, count)):
            return cudaError_t.cudaErrorInvalidValue
        stream.add(lambda: _move_held(dst, src, count))
        return None
    to_device = kind == cudaMemcpyKind.cudaMemcpyHostToDevice
    host, on_device = (src, dst) if to_device else (dst, src)
    if not device.holds(on_device, count) or device.holds(host, count):
        return cudaError_t.cudaErrorInvalidValue
    device.copies.append(("in" if to_device else "out", host, count))
    is_pinned = device.reaches(host, count)
    if not to_device and any(a <= host < a + device.registered[a][0] for a in device.read_only):
        return cudaError_t.cudaErrorInvalidValue
    if to_device and not is_pinned:
        taken = ctypes.string_at(src, count)
        stream.add(lambda: _move(dst, taken, count))
        return None
    if is_pinned:
        stream.add(lambda: _move_pinned(dst, src, count, host))
    else:
        stream.add(lambda: _move(dst, src, count))
        stream.drain()
    return None


def _move_pinned(target: int, source: int, count: int, host: int) -> None:
    """It must be pinned still."""
    if not device.reaches(host, count):
        raise Trap(cudaError_t.cudaErrorIllegalAddress)
    _move(target, source, count)


def _move_held(target: int, source: int, count: int) -> None:
    if not (device.holds(target, count) and device.holds(source, count)):
        raise Trap(cudaError_t.cudaErrorIllegalAddress)
    _move(target, source, count)


def _move(target: int, source: int | bytes, count: int) -> None:
    if not device.sticky:
        ctypes.memmove(target, source, count)
        device.moves.append(count)
        journal = os.environ.get("FAKE_CUDART_JOURNAL")
        if journal:
            with open(journal, "a") as file:
                file.write(f"{count}\n")


def cudaGetLastError() -> tuple[cudaError_t]:
    code, device.last = device.sticky or device.last, 0
    return (cudaError_t(code),)


def cudaGetErrorString(error: cudaError_t) -> tuple[cudaError_t, bytes]:
    return cudaError_t.cudaSuccess, error.name.removeprefix("cudaError").lower().encode()

"""The fake CUDA runtime with memory that processes share: what fake_cudart is, and IPC.

Stands in for `cuda.bindings.runtime`. Device memory lies in files of the folder that
FAKE_CUDA_FOLDER names (without it, nothing can be shared between processes), so that another
process with the same folder opens it by the 64 bytes of its handle. As in CUDA a process cannot
open its own handle, nor that of a process that is gone. For tests of one process,
`device_of_another` makes memory that somebody else seems to have exported.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
import struct
import sys
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from naiad.shm.cuda.errors import DRIVER_MODULE, RUNTIME_MODULE
from naiad.shm.cuda.runtime import CudaRuntime, cuda_runtime
from support import fake_cuda_driver
from support import fake_cudart as base
from support.fake_streams import Timing

FOLDER = "FAKE_CUDA_FOLDER"
HANDLE_BYTES = 64
_NAME = struct.Struct("<4sIIQ")
_COUNTS = struct.Struct("<QQ")
_numbers = itertools.count(1)

cudaEventInterprocess = 4
cudaIpcMemLazyEnablePeerAccess = 1


def __getattr__(name: str) -> Any:
    return getattr(base, name)


class _Handle:
    """64 bytes that only `getPtr` leads to, as in the newest cuda.bindings."""

    def __init__(self) -> None:
        self._content = ctypes.create_string_buffer(HANDLE_BYTES)

    def getPtr(self) -> int:
        return ctypes.addressof(self._content)

    @classmethod
    def named(cls, kind: bytes, number: int, size: int) -> Any:
        handle = cls()
        name = _NAME.pack(kind, os.getpid(), number, size)
        ctypes.memmove(handle._content, name, len(name))
        return handle


class cudaIpcMemHandle_t(_Handle):
    pass


class cudaIpcEventHandle_t(_Handle):
    pass


def _current() -> int:
    """The device that the calling thread's context is of; now it has one."""
    thread = fake_cuda_driver.thread
    if thread.device is None:
        thread.device = 0
    return thread.device


class cudaPointerAttributes:
    def __init__(self, device: int) -> None:
        self.device = device


class Shared:
    """Pages that several processes map; `path` None: only this one does."""

    def __init__(self, path: Path | None, size: int, *, is_new: bool = True) -> None:
        self.size = size
        self.device = _current()
        self.path = path
        descriptor = -1
        if path is not None:
            descriptor = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0))
            os.truncate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        self._first = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._first)
        if descriptor >= 0:
            os.close(descriptor)


class InterprocessEvent(base.cudaEvent_t):
    """Counts of what was recorded and what of it is done, in pages of its own."""

    def __init__(self, pages: Shared, number: int) -> None:
        super().__init__()
        self.pages = pages
        self.number = number

    @property
    def counts(self) -> tuple[int, int]:
        recorded, done = _COUNTS.unpack(ctypes.string_at(self.pages.address, _COUNTS.size))
        return recorded, done

    def set_counts(self, recorded: int, done: int) -> None:
        ctypes.memmove(self.pages.address, _COUNTS.pack(recorded, done), _COUNTS.size)


_exported: dict[int, tuple[int, Shared]] = {}
"""Own memory by its address."""
_opened: dict[bytes, tuple[Shared, int]] = {}
"""Others' memory by handle, and how often it is open."""
_others: dict[bytes, Shared] = {}
_default_streams: defaultdict[int, deque[Callable[[], object]]] = defaultdict(deque)
"""What was given to each device's and is not done."""
_before: dict[int, list[Shared]] = {}
"""What was exported, or opened so often, on former devices. No real device is ever replaced: the
addresses are in use until their owners, whom the garbage collection may find at any time, give them
back."""


def reset(timing: Timing | None = None) -> base.Device:
    """A new device, nothing exported and nothing opened, and no context of this thread's."""
    fake_cuda_driver.thread.device = None
    for pages, count in (*((one, 1) for _, one in _exported.values()), *_opened.values()):
        _before.setdefault(pages.address, []).extend([pages] * count)
    _exported.clear()
    _opened.clear()
    _others.clear()
    _default_streams.clear()
    return base.reset(timing)


def loaded() -> CudaRuntime:
    """What the code under test calls, over this."""
    modules = {RUNTIME_MODULE: sys.modules[__name__], DRIVER_MODULE: fake_cuda_driver}
    return cuda_runtime(modules.__getitem__)


def device_of_another(content: bytes) -> bytes:
    """The handle of memory with this content, exported by a process that seems to be another."""
    pages = Shared(None, len(content))
    ctypes.memmove(pages.address, content, len(content))
    number = next(_numbers)
    handle = _NAME.pack(b"MEM ", 0, number, len(content)).ljust(HANDLE_BYTES, b"\0")
    _others[handle] = pages
    return handle


def event_of_another() -> bytes:
    """The handle of an event that such a process exported; it was never recorded."""
    number = next(_numbers)
    handle = _NAME.pack(b"EVT ", 0, number, _COUNTS.size).ljust(HANDLE_BYTES, b"\0")
    _others[handle] = Shared(None, _COUNTS.size)
    return handle


def content_of_another(handle: bytes) -> bytes:
    pages = _others[handle]
    return ctypes.string_at(pages.address, pages.size)


def write_to_another(handle: bytes, offset: int, content: bytes) -> None:
    pages = _others[handle]
    assert offset + len(content) <= pages.size
    ctypes.memmove(pages.address + offset, content, len(content))


def forget_another(handle: bytes) -> None:
    """Its process ends."""
    del _others[handle]


def open_count(handle: bytes) -> int:
    return _opened[handle][1] if handle in _opened else 0


def _path(kind: bytes, pid: int, number: int) -> Path | None:
    folder = os.environ.get(FOLDER)
    return None if folder is None else Path(folder, f"{kind.decode().strip()}-{pid}-{number}")


def _raw(handle: _Handle) -> bytes:
    return ctypes.string_at(handle.getPtr(), HANDLE_BYTES)


def _found(handle: bytes, expected: bytes) -> Shared | None:
    """The pages of another, living process."""
    if handle in _others:
        return _others[handle]
    kind, pid, number, size = _NAME.unpack(handle[: _NAME.size])
    if kind != expected or pid in (0, os.getpid()) or not _is_running(pid):
        return None
    path = _path(kind, pid, number)
    if path is None or not path.exists():
        return None
    return Shared(path, size, is_new=False)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@base._call(1)
def cudaGetDevice() -> Any:
    return (fake_cuda_driver.thread.device or 0,)


@base._call(0)
def cudaSetDevice(device: int) -> Any:
    if not 0 <= device < base.device.count:
        return base.cudaError_t.cudaErrorInvalidDevice
    fake_cuda_driver.thread.device = device
    return None


@base._call(1)
def cudaMalloc(size: int) -> Any:
    device = base.device
    _current()
    if size > device.total - device.used:
        return base.cudaError_t.cudaErrorMemoryAllocation
    number = next(_numbers)
    pages = Shared(_path(b"MEM ", os.getpid(), number), max(1, size))
    ctypes.memset(pages.address, base.POISON, size)
    device.memory[pages.address] = size, pages
    _exported[pages.address] = number, pages
    return (pages.address,)


@base._call(0)
def cudaFree(devPtr: int) -> Any:
    exported = _exported.pop(devPtr, None)
    if exported is None:
        return _given_back(devPtr)
    del base.device.memory[devPtr]
    path = exported[1].path
    if path is not None:
        path.unlink()
    return None


def _given_back(address: int) -> Any:
    """Of a former device."""
    pages = _before.get(address)
    if not pages:
        return base.cudaError_t.cudaErrorInvalidValue
    pages.pop()
    if not pages:
        del _before[address]
    return None


@base._call(1)
def cudaIpcGetMemHandle(devPtr: int) -> Any:
    for address, (number, pages) in _exported.items():
        if address <= devPtr < address + pages.size:
            return (cudaIpcMemHandle_t.named(b"MEM ", number, pages.size),)
    return base.cudaError_t.cudaErrorInvalidValue


@base._call(1)
def cudaIpcOpenMemHandle(handle: cudaIpcMemHandle_t, flags: int) -> Any:
    raw = _raw(handle)
    pages, count = _opened.get(raw, (None, 0))
    pages = pages or _found(raw, b"MEM ")
    if pages is None:
        return base.cudaError_t.cudaErrorInvalidValue
    _opened[raw] = pages, count + 1
    base.device.memory[pages.address] = pages.size, pages
    return (pages.address,)


@base._call(0)
def cudaIpcCloseMemHandle(devPtr: int) -> Any:
    for raw, (pages, count) in _opened.items():
        if pages.address == devPtr:
            _opened[raw] = pages, count - 1
            if count == 1:
                del _opened[raw]
                base.device.memory.pop(devPtr, None)
            return None
    return _given_back(devPtr)


@base._call(1)
def cudaPointerGetAttributes(ptr: int) -> Any:
    if not base.device.holds(ptr, 1):
        return base.cudaError_t.cudaErrorInvalidValue
    return (cudaPointerAttributes(_device_of(ptr)),)


def _device_of(address: int) -> int:
    """The GPU that allocated it, or opened it."""
    for begin, (size, pages) in base.device.memory.items():
        if begin <= address < begin + size:
            return int(getattr(pages, "device", 0))
    return 0


@base._call(1)
def cudaEventCreateWithFlags(flags: int) -> Any:
    if not flags & cudaEventInterprocess:
        return _counted(base.cudaEvent_t(flags))
    if not flags & base.cudaEventDisableTiming:
        return base.cudaError_t.cudaErrorInvalidValue
    number = next(_numbers)
    pages = Shared(_path(b"EVT ", os.getpid(), number), _COUNTS.size)
    return _counted(InterprocessEvent(pages, number))


def _counted(event: base.cudaEvent_t) -> tuple[base.cudaEvent_t]:
    base.device.events.add(event)
    return (event,)


@base._call(1)
def cudaIpcGetEventHandle(event: InterprocessEvent) -> Any:
    if not isinstance(event, InterprocessEvent):
        return base.cudaError_t.cudaErrorInvalidValue
    return (cudaIpcEventHandle_t.named(b"EVT ", event.number, _COUNTS.size),)


@base._call(1)
def cudaIpcOpenEventHandle(handle: cudaIpcEventHandle_t) -> Any:
    pages = _found(_raw(handle), b"EVT ")
    if pages is None:
        return base.cudaError_t.cudaErrorInvalidValue
    return _counted(InterprocessEvent(pages, 0))


@base._call(0)
def cudaEventRecord(event: base.cudaEvent_t, stream: Any) -> Any:
    if not isinstance(event, InterprocessEvent):
        event.done = stream.record()
        return None
    if int(stream) not in base.device.streams and event.pages.device != _current():
        return base.cudaError_t.cudaErrorInvalidResourceHandle
    recorded, done = event.counts
    event.set_counts(recorded + 1, done)
    if int(stream) in base.device.streams:
        base.device.streams[int(stream)].add(functools.partial(_happened, event, recorded + 1))
    else:  # the default stream does nothing that takes time
        _happened(event, recorded + 1)
    return None


def _happened(event: InterprocessEvent, number: int) -> None:
    event.set_counts(event.counts[0], number)


@base._call(0)
def cudaEventQuery(event: base.cudaEvent_t) -> Any:
    """It tells of what went wrong meanwhile."""
    if isinstance(event, InterprocessEvent):
        recorded, done = event.counts
        return _met_meanwhile() if done >= recorded else base.cudaError_t.cudaErrorNotReady
    return base.looked_at(event)


@base._call(0)
def cudaStreamWaitEvent(stream: Any, event: base.cudaEvent_t, flags: int) -> Any:
    """Of an event as it was recorded last by now."""
    if isinstance(event, InterprocessEvent):
        stream.wait_until(functools.partial(_is_past, event, event.counts[0]))
    else:
        stream.wait_for(event.done)


def _is_past(event: InterprocessEvent, recorded: int) -> bool:
    return event.counts[1] >= recorded


@base._call(0)
def cudaEventDestroy(event: base.cudaEvent_t) -> Any:
    if event not in base.device.events:
        return base.cudaError_t.cudaErrorInvalidValue
    base.device.events.remove(event)
    if isinstance(event, InterprocessEvent) and event.number and event.pages.path is not None:
        event.pages.path.unlink()
    return None


def _met_meanwhile() -> Any:
    """Whoever waits is told of what went wrong on the device."""
    return base.cudaError_t(base.device.sticky) if base.device.sticky else None


@base._call(0)
def cudaMemcpy(dst: int, src: int, count: int, kind: base.cudaMemcpyKind) -> Any:
    """Each address must be on the side that the kind says. Only copies to the host are done when
    it returns."""
    holds = base.device.holds
    expected = {
        base.cudaMemcpyKind.cudaMemcpyHostToDevice: (True, False),
        base.cudaMemcpyKind.cudaMemcpyDeviceToHost: (False, True),
        base.cudaMemcpyKind.cudaMemcpyDeviceToDevice: (True, True),
    }[kind]
    if (holds(dst, count), holds(src, count)) != expected:
        return base.cudaError_t.cudaErrorInvalidValue
    if kind == base.cudaMemcpyKind.cudaMemcpyDeviceToDevice:
        _default_streams[_current()].append(functools.partial(ctypes.memmove, dst, src, count))
    elif kind == base.cudaMemcpyKind.cudaMemcpyHostToDevice:
        taken = ctypes.string_at(src, count)
        _default_streams[_current()].append(functools.partial(ctypes.memmove, dst, taken, count))
    else:
        _drain_default_stream()
        ctypes.memmove(dst, src, count)
    return None


def _drain_default_stream() -> None:
    """The current device's."""
    waiting = _default_streams[_current()]
    while waiting:
        waiting.popleft()()


@base._call(0)
def cudaStreamSynchronize(stream: Any) -> Any:
    if int(stream) in base.device.streams:
        base.device.streams[int(stream)].drain()
    else:
        _drain_default_stream()
    return _met_meanwhile()

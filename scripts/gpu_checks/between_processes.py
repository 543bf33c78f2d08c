"""Device memory and events between two processes, by the handles that CUDA gives for them.

Each side in turn computes late, tells the other at once, and the other waits by the event alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Iterator
from typing import Any, Final

from gpu_checks import rows
from gpu_checks.gpu import Gpu, floats_at
from gpu_checks.kernels import Kernels
from gpu_checks.peers import Peer
from gpu_checks.rows import Row
from gpu_checks.steps import Options

COUNT: Final = 1 << 20
SIZE: Final = 4 * COUNT
LATE_US: Final = 500_000
"""Longer than the other side takes to open what it is told of."""
HANDLE_BYTES: Final = 64


def handle_bytes(handle: Any) -> str:
    return ctypes.string_at(handle.getPtr(), HANDLE_BYTES).hex()


def handle_from(kind: Any, text: str) -> Any:
    handle = kind()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(text), HANDLE_BYTES)
    return handle


def prove(options: Options) -> Iterator[Row]:
    with Peer("reader") as peer:
        peer.ask({"do": "start"})  # its context is there before anything is late
        gpu = Gpu()
        kernels = Kernels(gpu)
        stream = gpu.stream()
        kernels.busy(stream, 10)
        x, shared = gpu.malloc(SIZE), gpu.malloc(SIZE)
        with gpu.pinned(SIZE) as host:
            numbers = floats_at(host, COUNT)
            numbers[:] = 1
            gpu.to_device(x, host, SIZE, stream)
            gpu.call("cudaMemsetAsync", shared, 0, SIZE, stream)
            gpu.finish(stream)
            event = gpu.event(interprocess=True)
            kernels.busy(stream, LATE_US)
            kernels.affine(stream, x, shared, COUNT)
            gpu.record(event, stream)
            memory = handle_bytes(gpu.call("cudaIpcGetMemHandle", shared))
            ready = handle_bytes(gpu.call("cudaIpcGetEventHandle", event))
            found = peer.ask({"do": "read", "memory": memory, "event": ready})
            what = "another process reads device memory"
            yield rows.holds(what, bool(found["seen"]), f"{SIZE >> 20} MiB, opened by handle")
            yield _waited(found, "it waits by the event until the bytes are computed", [3.0])
            gpu.finish(stream)
            told = peer.ask({"do": "write"})
            theirs = handle_from(gpu.runtime.cudaIpcEventHandle_t, told["event"])
            done = gpu.call("cudaIpcOpenEventHandle", theirs)
            gpu.wait_for(stream, done)
            is_late = told["is_late"] and _is_pending(gpu, done)
            gpu.to_host(host, shared, SIZE, stream)
            gpu.finish(stream)
            found = {"seen": sorted({float(number) for number in numbers}), "is_late": is_late}
            yield _waited(found, "and this process, by its event, for what it writes there", [7.0])
            gpu.call("cudaEventDestroy", done)
        peer.ask({"do": "close"})
        gpu.free(x, shared)


def _waited(found: dict[str, Any], what: str, expected: list[float]) -> Row:
    is_so = found["seen"] == expected and found["is_late"]
    reason = "other numbers" if found["is_late"] else "the event was reached before it was opened"
    return rows.holds(what, is_so, f"{found['seen'][:4]}", bar=f"{expected}", reason=reason)


def _is_pending(gpu: Gpu, event: Any) -> bool:
    """Whether what the event stands for is still under way: else nothing was waited for."""
    return not gpu.is_reached(event)


def reader() -> Generator[Any, Any, None]:
    """The other process."""
    yield
    gpu = Gpu()
    kernels = Kernels(gpu)
    stream = gpu.stream()
    kernels.load(stream)
    own = gpu.malloc(SIZE)
    told = yield "started"
    memory = handle_from(gpu.runtime.cudaIpcMemHandle_t, told["memory"])
    handle = handle_from(gpu.runtime.cudaIpcEventHandle_t, told["event"])
    flags = gpu.runtime.cudaIpcMemLazyEnablePeerAccess
    shared = int(gpu.call("cudaIpcOpenMemHandle", memory, flags))
    event = gpu.call("cudaIpcOpenEventHandle", handle)
    with gpu.pinned(SIZE) as host:
        is_late = _is_pending(gpu, event)
        gpu.wait_for(stream, event)
        gpu.to_host(host, shared, SIZE, stream)
        gpu.call("cudaMemcpyAsync", own, shared, SIZE, _inside(gpu), stream)
        gpu.finish(stream)
        seen = sorted({float(number) for number in floats_at(host, COUNT)})
    yield {"seen": seen, "is_late": is_late}
    done = gpu.event(interprocess=True)
    kernels.busy(stream, LATE_US)
    kernels.affine(stream, own, shared, COUNT)
    gpu.record(done, stream)
    yield {"event": handle_bytes(gpu.call("cudaIpcGetEventHandle", done)), "is_late": True}
    gpu.finish(stream)
    gpu.call("cudaIpcCloseMemHandle", shared)
    gpu.call("cudaEventDestroy", event)
    yield "closed"


def _inside(gpu: Gpu) -> Any:
    return gpu.runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice

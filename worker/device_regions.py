"""Clients' regions of GPU memory in one worker: opened once, and closed when nothing uses them.

A region is opened when a request first names it, by its IPC handle, and stays so until it is
forgotten and the last span of it is gone: a forgotten region that a batch uses is closed after it.
Errors name a region by what its owner called it, and never show a handle.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from naiad.protocol.errors import Code, ModelError, ProtocolError, RequestError
from naiad.protocol.messages import Region
from naiad.shm.cuda.key import parsed
from naiad.shm.cuda.runtime import CudaFault, CudaMissing, CudaRuntime, cuda_runtime, quietly
from naiad.shm.layout import checked_range
from naiad.shm.mappings import DEFINITIONS_MAX
from naiad.worker.backends.base import DeviceSpan, InstanceLost


class OpenedRegion:
    """A mapping of somebody else's GPU memory; it ends with this object."""

    def __init__(self, cuda: CudaRuntime, region: Region) -> None:
        """Raises CudaFault, CudaMissing, or RequestError when there is less than was said."""
        memory, event, name = parsed(region.key)
        # With one GPU to see, that is the one, whatever number the server knows it by.
        self.device = region.device if region.device < cuda.device_count else 0
        self.address = cuda.open_memory(memory, self.device)
        self.event: Any = None
        self._close = weakref.finalize(self, quietly, cuda.close_memory, self.address, self.device)
        self._close.atexit = False
        try:
            size = sum(cuda.allocation(self.address, self.device)) - self.address
        except (CudaFault, CudaMissing):
            self.close()
            raise
        if size < region.size:
            self.close()
            raise RequestError(
                f"CUDA shared memory region '{name}' was registered with {region.size} bytes, and"
                f" its memory has {size}; register it with the size of its allocation"
            )
        if event:
            try:
                self.event = cuda.open_event(event, self.device)
            except CudaFault:
                self.close()
                raise
            weakref.finalize(self, quietly, cuda.end_event, self.event).atexit = False

    def close(self) -> None:
        self._close()


class DeviceRegions:
    """GPU memory that one broker has defined for this worker. `load` is for tests."""

    def __init__(self, load: Callable[[], CudaRuntime] = cuda_runtime) -> None:
        self._load = load
        self._cuda: CudaRuntime | None = None
        self._regions: dict[int, Region] = {}
        self._opened: dict[int, OpenedRegion] = {}

    def define(self, region: Region) -> None:
        """Raises ProtocolError when an id comes to mean something else."""
        if len(self._regions) >= DEFINITIONS_MAX:
            raise ProtocolError(f"more than {DEFINITIONS_MAX} regions of GPU memory are defined")
        known = self._regions.setdefault(region.id, region)
        if known != region:
            raise ProtocolError(
                f"region {region.id} is known as CUDA memory already; a new region needs a new id"
            )

    def span(self, region_id: int, offset: int, size: int) -> DeviceSpan:
        """`size` bytes at `offset`. Raises RequestError when they cannot be had here."""
        region = self._regions.get(region_id)
        if region is None:
            raise RequestError(
                f"Unable to find shared memory region: '{region_id}'", code=Code.NOT_FOUND
            )
        checked_range(offset, size, region.size, parsed(region.key).name)
        opened = self._opened.get(region_id)
        if opened is None:
            opened = self._opened[region_id] = self._open(region)
        return DeviceSpan(opened.address + offset, size, opened.device, opened.event, opened)

    def _open(self, region: Region) -> OpenedRegion:
        name = parsed(region.key).name
        try:
            return OpenedRegion(self.cuda(), region)
        except CudaMissing as missing:
            raise RequestError(
                f"CUDA shared memory region '{name}' cannot be used by this model's worker:"
                f" {missing}",
                code=Code.UNSUPPORTED,
            ) from missing
        except CudaFault as fault:
            if fault.is_sticky:
                raise lost(fault) from fault
            raise RequestError(
                f"CUDA shared memory region '{name}' cannot be opened: {fault}. It was registered"
                f" for GPU {region.device}; its memory must be of cudaMalloc, and allocated in a"
                " process that still runs. Register it again"
            ) from fault

    def cuda(self) -> CudaRuntime:
        """Raises CudaMissing."""
        if self._cuda is None:
            self._cuda = self._load()
        return self._cuda

    def forget(self, ids: Iterable[int]) -> dict[int, weakref.ref[object]]:
        """Close regions; those that a span still holds are returned, and closed with the last."""
        opened: dict[int, weakref.ref[object]] = {}
        for ident in ids:
            self._regions.pop(ident, None)
            if ident in self._opened:
                opened[ident] = weakref.ref(self._opened.pop(ident))
        return {ident: region for ident, region in opened.items() if region() is not None}

    # --- Copies --------------------------------------------------------------------------------

    def host_copy(self, span: DeviceSpan) -> memoryview:
        """The bytes in ordinary memory, read-only."""
        import numpy as np

        copy = np.empty(span.size, np.uint8)
        with self._waited_for(span) as cuda:
            cuda.copy_to_host(_address(copy), span.address, span.size, span.device)
        return copy.data.toreadonly()

    def write(self, span: DeviceSpan, content: memoryview | bytes) -> None:
        """Ordinary memory to the beginning of the span."""
        with self._waited_for(span) as cuda:
            size = memoryview(content).nbytes
            cuda.copy_to_device(span.address, _address(content), size, span.device)

    def move(self, target: DeviceSpan, source: DeviceSpan) -> None:
        """Within GPU memory, to the beginning of the target."""
        with self._waited_for(target) as cuda:
            cuda.copy_on_device(target.address, source.address, source.size, target.device)

    def wait_for(self, span: DeviceSpan) -> None:
        """Until the owner's own work on it is done, for code that does not know of events."""
        if span.event is not None:
            with self._waited_for(span):
                pass

    @contextmanager
    def _waited_for(self, span: DeviceSpan) -> Iterator[CudaRuntime]:
        """The memory is free of its owner's own work. Raises ModelError or InstanceLost for what
        goes wrong within."""
        try:
            cuda = self.cuda()
            if span.event is not None:
                cuda.wait_for(span.event)
            yield cuda
        except CudaMissing as missing:
            raise ModelError(f"a tensor in GPU memory cannot be reached: {missing}") from missing
        except CudaFault as fault:
            if fault.is_sticky:
                raise lost(fault) from fault
            raise ModelError(f"copying a tensor from or to GPU memory: {fault}") from fault


def lost(fault: CudaFault) -> InstanceLost:
    """For a GPU that does nothing more for this process."""
    return InstanceLost(f"{fault}; nothing more can run in this process")


def _address(buffer: Any) -> int:
    import numpy as np

    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address

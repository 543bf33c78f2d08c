"""Clients' regions of GPU memory in one worker: opened once, and closed when nothing uses them.

A region is opened when a request first names it, by its IPC handle, and stays so until it is
forgotten and the last span of it is gone: a forgotten region that a batch uses is closed after it.
Errors name a region by what its owner called it, and never show a handle.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, Final

from naiad.protocol.errors import Code, ModelError, ProtocolError, RequestError
from naiad.protocol.messages import Region
from naiad.shm.cuda.key import parsed
from naiad.shm.cuda.runtime import CudaFault, CudaMissing, CudaRuntime, cuda_runtime, quietly
from naiad.shm.layout import checked_range
from naiad.shm.mappings import DEFINITIONS_MAX
from naiad.worker.backends.base import DeviceSpan, InstanceLost

CLIENT_EVENT_SECONDS_MAX: Final = 5.0
"""What a batch waits, all in all, for its clients' own work on their memory."""
EVENT_POLL_SECONDS: Final = 100e-6


class OpenedRegion:
    """A mapping of somebody else's GPU memory; it ends with this object."""

    def __init__(self, cuda: CudaRuntime, region: Region) -> None:
        """Raises CudaFault, CudaMissing, or RequestError when there is less than was said."""
        memory, event, name = parsed(region.key)
        self.name = name
        self.is_overdue = False
        """Whether its event was waited for in vain; until that comes nobody waits again."""
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
        self._patience_ends = 0.0

    def begin(self) -> None:
        """A batch begins: from here on it may wait CLIENT_EVENT_SECONDS_MAX for events."""
        self._patience_ends = monotonic() + CLIENT_EVENT_SECONDS_MAX

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

    def awaits_owner(self, ids: Iterable[int]) -> bool:
        """Whether the owner's own work on one of these regions is, or may be, under way."""
        return any(self._awaits_owner(ident) for ident in ids)

    def _awaits_owner(self, ident: int) -> bool:
        opened = self._opened.get(ident)
        if opened is None:
            region = self._regions.get(ident)
            return region is not None and parsed(region.key).event != b""
        try:
            return opened.event is not None and not self.cuda().is_reached(opened.event)
        except CudaFault:
            return True  # whoever waits for it is told

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
        """Until the owner's own work on it is done; RequestError when that takes too long."""
        if span.event is not None:
            with self._waited_for(span):
                pass

    @contextmanager
    def _waited_for(self, span: DeviceSpan) -> Iterator[CudaRuntime]:
        """The memory is free of its owner's own work. Raises ModelError or InstanceLost for what
        goes wrong within, RequestError when the owner's work does not end."""
        try:
            cuda = self.cuda()
            if span.event is not None:
                self._wait(cuda, span.event, span.keep)
            yield cuda
        except CudaMissing as missing:
            raise ModelError(f"a tensor in GPU memory cannot be reached: {missing}") from missing
        except CudaFault as fault:
            if fault.is_sticky:
                raise lost(fault) from fault
            raise ModelError(f"copying a tensor from or to GPU memory: {fault}") from fault

    def _wait(self, cuda: CudaRuntime, event: Any, opened: OpenedRegion) -> None:
        """Never on a stream, which others' work would wait in as well."""
        is_reached = cuda.is_reached(event)
        while not is_reached and not opened.is_overdue and monotonic() < self._patience_ends:
            sleep(EVENT_POLL_SECONDS)
            is_reached = cuda.is_reached(event)
        opened.is_overdue = not is_reached
        if not is_reached:
            raise RequestError(
                f"CUDA shared memory region '{opened.name}': its event was not reached within"
                f" {CLIENT_EVENT_SECONDS_MAX:g} s (CLIENT_EVENT_SECONDS_MAX); send a request when"
                " the work that the event is recorded behind is about to end"
            )


def lost(fault: CudaFault) -> InstanceLost:
    """For a GPU that does nothing more for this process."""
    return InstanceLost(f"{fault}; nothing more can run in this process")


def _address(buffer: Any) -> int:
    import numpy as np

    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address

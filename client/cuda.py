"""GPU memory that a client shares with the server by CUDA's IPC: tensors that stay there.

Owns the memory that `allocate` took and the events; an array that was given stays its owner's, and
is kept alive. `cuda.bindings` is imported when this is first used.
"""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any

from naiad.client.regions import check_range, check_size, size_of
from naiad.client.requests import REGION, InferInput, OutputPlace
from naiad.protocol.errors import Code, RequestError, Unavailable
from naiad.protocol.messages import Region
from naiad.shm.cuda.arrays import DeviceArray, DeviceView, view_of
from naiad.shm.cuda.key import cuda_region
from naiad.shm.cuda.runtime import CudaFault, CudaMissing, CudaRuntime, cuda_runtime, quietly

_names = itertools.count(1)


class GpuMemory:
    """One allocation on a GPU, and what keeps it; shared by a region and all that uses it.

    `device` is this process's number of the GPU; the server knows it by its UUID.
    """

    def __init__(
        self, cuda: CudaRuntime, address: int, size: int, device: int, uuid: str, keep: object
    ) -> None:
        self.cuda = cuda
        self.address = address
        self.size = size
        self.device = device
        self.uuid = uuid
        self._keep = keep

    def array(self, datatype: str, shape: tuple[int, ...], offset: int) -> DeviceArray:
        """What lies at `offset`; the array keeps this alive."""
        return DeviceArray(self.address + offset, self.device, datatype, shape, self)


class CudaRegion:
    """GPU memory that inputs are read from and outputs written to, as often as wanted.

    It must live until `Client.detach` has returned: only then no worker has it open. What is made
    from it keeps it. `array` is what it was made from (None: the memory is its own).
    """

    def __init__(self, memory: GpuMemory, view: DeviceView | None, array: Any, event: Any) -> None:
        self.id = 0
        """Set once, when it is registered."""
        self.array = array
        self.memory = memory
        self._view = view
        self._event = event
        self._begin = 0 if view is None else view.address - memory.address
        self.size = memory.size if view is None else view.size
        self.device = memory.device

    def input(
        self,
        name: str,
        datatype: str | None = None,
        shape: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> InferInput:
        """What lies at `offset`, as an input; by default the whole array that this was made from.

        Its contents must be there when the request is sent: see `written`.
        """
        if self._view is not None and datatype is None and shape is None:
            datatype, shape = self._view.datatype, self._view.shape
        if datatype is None or shape is None:
            raise RequestError("expected a datatype and a shape: this region has no array's")
        size = size_of(datatype, shape)
        check_range(offset, size, self.size)
        begin = self._begin + offset
        return InferInput(
            name, datatype, tuple(shape), None, REGION, self.id, begin, size, self.memory
        )

    def place(self, offset: int = 0, size: int = -1) -> OutputPlace:
        """Where an output may be written; all of the region by default. The result of the request
        has the output as a DeviceArray."""
        if self._view is not None and self._view.is_read_only:
            raise RequestError("expected an array that may be written to: this one is read-only")
        if size == -1 and type(offset) is int:
            size = self.size - offset
        check_range(offset, size, self.size)
        return OutputPlace(self.id, self._begin + offset, size, self.memory)

    def tensor(self, datatype: str, shape: tuple[int, ...], offset: int = 0) -> DeviceArray:
        """What lies at `offset`, for any library that takes arrays in GPU memory."""
        check_range(offset, size_of(datatype, shape), self.size)
        return self.memory.array(datatype, tuple(shape), self._begin + offset)

    def written(self, stream: int = 0) -> None:
        """Before a request: all that was given to this CUDA stream so far is done before workers
        read or write here; 0 is the default stream of this region's GPU, whichever is current.
        With an event nobody waits for that now; without, this call does."""
        cuda = self.memory.cuda
        try:
            if self._event is None:
                cuda.wait_for_stream(stream, self.device)
            else:
                cuda.record(self._event, stream, self.device)
        except CudaFault as fault:
            raise Unavailable(f"waiting for the stream: {fault}") from fault


def shared_array(array: Any, *, event: bool) -> tuple[Region, CudaRegion]:
    """The memory of an array, to be registered. Raises RequestError for what cannot be shared."""
    cuda = _cuda()
    view = view_of(array, cuda)
    if not view.size:
        raise RequestError("expected an array with elements: there is no memory to share")
    begin, size = _allocation(cuda, view)
    size = min(size, view.address + view.size - begin)
    memory = GpuMemory(cuda, begin, size, view.device, _uuid(cuda, view.device), array)
    return _shared(memory, view, array, event)


def _allocation(cuda: CudaRuntime, view: DeviceView) -> tuple[int, int]:
    """Of the array: a handle opens all of it, from its beginning, so that there is no guessing."""
    try:
        return cuda.allocation(view.address, view.device)
    except CudaMissing as missing:
        raise RequestError(f"no GPU memory here: {missing}", code=Code.UNSUPPORTED) from missing
    except CudaFault as fault:
        raise RequestError(
            f"this array cannot be shared: CUDA does not tell which allocation of GPU"
            f" {view.device} it is a part of: {fault}"
        ) from fault


def new_memory(size: int, device: int, *, event: bool) -> tuple[Region, CudaRegion]:
    """Memory of one's own, to be registered. Raises Unavailable where there is none."""
    check_size(size)
    cuda = _cuda()
    if type(device) is not int or not 0 <= device < cuda.device_count:
        raise RequestError(
            f"expected the number of a GPU, 0 to {cuda.device_count - 1}, got {device!r:.80}"
        )
    uuid = _uuid(cuda, device)
    try:
        address = cuda.allocate(size, device)
    except CudaFault as fault:
        raise Unavailable(f"no GPU memory of {size} bytes: {fault}") from fault
    memory = GpuMemory(cuda, address, size, device, uuid, None)
    weakref.finalize(memory, quietly, cuda.free, address, device).atexit = False
    return _shared(memory, None, None, event)


def _uuid(cuda: CudaRuntime, device: int) -> str:
    """Of a GPU, for the server, whose numbers may be others."""
    try:
        return cuda.uuid(device)
    except (CudaMissing, CudaFault) as fault:
        raise RequestError(f"CUDA does not tell the UUID of GPU {device}: {fault}") from fault


def _shared(
    memory: GpuMemory, view: DeviceView | None, array: Any, has_event: bool
) -> tuple[Region, CudaRegion]:
    cuda = memory.cuda
    event = None
    handle = b""
    try:
        opens = cuda.memory_handle(memory.address, memory.device)
        if has_event:
            event = cuda.new_event(memory.device)
            weakref.finalize(memory, quietly, cuda.end_event, event).atexit = False
            handle = cuda.event_handle(event)
    except CudaFault as fault:
        raise RequestError(
            f"this memory cannot be shared between processes: {fault}. CUDA shares what cudaMalloc"
            " allocated, and not what cudaMallocAsync or virtual memory did (PyTorch:"
            " expandable_segments:False; CuPy: its default pool)"
        ) from fault
    name = f"cuda-{os.getpid()}-{next(_names)}"
    region = cuda_region(opens, memory.size, memory.device, name, event=handle)
    return region, CudaRegion(memory, view, array, event)


def _cuda() -> CudaRuntime:
    try:
        return cuda_runtime()
    except CudaMissing as missing:
        raise RequestError(f"no GPU memory here: {missing}", code=Code.UNSUPPORTED) from missing

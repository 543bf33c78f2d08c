"""CUDA's runtime as far as shared memory needs it: handles, mappings, copies. Each call is checked.

`cuda.bindings` is imported when it is first needed, and never by a broker. It returns tuples and
raises nothing; here an error is a CudaFault. Owns no memory and knows no region.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final
from uuid import UUID

from naiad.shm.cuda.errors import (
    DRIVER_MODULE,
    NO_CONTEXT_ERROR,
    NOT_READY_ERROR,
    RUNTIME_MODULE,
    STICKY_ERRORS,
    described,
    without_gpu,
)
from naiad.shm.cuda.key import HANDLE_BYTES

INSTALL: Final = "pip install 'naiad[cuda]'"

UUID_BYTES: Final = 16
_DEFAULT_STREAM: Final = 0


class CudaMissing(Exception):
    """There is no CUDA in this process; the text says what is missing and what to do."""


class CudaFault(Exception):
    """A call failed: `code` is CUDA's number, the text CUDA's name and words for it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def is_sticky(self) -> bool:
        return self.code in STICKY_ERRORS


class CudaRuntime:
    """The calls. Numbers of devices are those of this process.

    What CUDA does on the current device is done on the device that is given, and the caller's own
    is current again afterwards: also for stream 0, which every device has.
    """

    def __init__(self, api: Any, driver: Any) -> None:
        self.api = api
        self._driver = driver
        self.device_count = _device_count(api)

    # --- Handles -------------------------------------------------------------------------------

    def memory_handle(self, address: int, device: int) -> bytes:
        """What another process opens the allocation around `address` with.

        Raises CudaFault for memory that cannot be shared so: all but that of cudaMalloc.
        """
        with self._on(device):
            return _bytes_of(self._call("cudaIpcGetMemHandle", address))

    def open_memory(self, handle: bytes, device: int) -> int:
        """The address here of another process's allocation; its beginning."""
        opened = _filled(self.api.cudaIpcMemHandle_t(), handle)
        with self._on(device):
            flags = self.api.cudaIpcMemLazyEnablePeerAccess
            return int(self._call("cudaIpcOpenMemHandle", opened, flags))

    def close_memory(self, address: int, device: int) -> None:
        with self._on(device):
            self._call("cudaIpcCloseMemHandle", address)

    def allocation(self, address: int, device: int) -> tuple[int, int]:
        """(beginning, size) of the allocation around an address on this GPU.

        Raises CudaFault where CUDA cannot tell, and CudaMissing.
        """
        with self._on(device):
            begin, size = self._drive("cuMemGetAddressRange", address)
        return int(begin), int(size)

    def device_of(self, address: int) -> int:
        """The GPU that the memory is on."""
        return int(self._call("cudaPointerGetAttributes", address).device)

    def uuid(self, device: int) -> str:
        """As `nvidia-smi -L` has it, without "GPU-" or "MIG-"; a MIG device has its own."""
        (handle,) = self._drive("cuDeviceGet", device)
        # CUDA 12 has two: the older one tells of the whole GPU.
        later = "cuDeviceGetUuid_v2"
        name = later if hasattr(self._driver, later) else "cuDeviceGetUuid"
        (found,) = self._drive(name, handle)
        return str(UUID(bytes=_bytes_of(found, UUID_BYTES)))

    # --- Memory --------------------------------------------------------------------------------

    def allocate(self, size: int, device: int) -> int:
        with self._on(device):
            return int(self._call("cudaMalloc", size))

    def free(self, address: int, device: int) -> None:
        with self._on(device):
            self._call("cudaFree", address)

    def copy_to_host(self, host: int, address: int, size: int, device: int) -> None:
        """Done when it returns, as are all copies here."""
        self._copy(host, address, size, self.api.cudaMemcpyKind.cudaMemcpyDeviceToHost, device)

    def copy_to_device(self, address: int, host: int, size: int, device: int) -> None:
        self._copy(address, host, size, self.api.cudaMemcpyKind.cudaMemcpyHostToDevice, device)

    def copy_on_device(self, target: int, source: int, size: int, device: int) -> None:
        """To the device that is given."""
        self._copy(target, source, size, self.api.cudaMemcpyKind.cudaMemcpyDeviceToDevice, device)

    def _copy(self, target: int, source: int, size: int, kind: Any, device: int) -> None:
        if size:
            with self._on(device):
                self._call("cudaMemcpy", target, source, size, kind)
                # Only copies to the host have ended by now: others may still be under way.
                self._call("cudaStreamSynchronize", _DEFAULT_STREAM)

    # --- Events --------------------------------------------------------------------------------

    def new_event(self, device: int) -> Any:
        """An event that other processes may wait for."""
        flags = self.api.cudaEventDisableTiming | self.api.cudaEventInterprocess
        with self._on(device):
            return self._call("cudaEventCreateWithFlags", flags)

    def event_handle(self, event: Any) -> bytes:
        return _bytes_of(self._call("cudaIpcGetEventHandle", event))

    def open_event(self, handle: bytes, device: int) -> Any:
        opened = _filled(self.api.cudaIpcEventHandle_t(), handle)
        with self._on(device):
            return self._call("cudaIpcOpenEventHandle", opened)

    def record(self, event: Any, stream: int, device: int) -> None:
        """Everything given to the stream so far is what those who wait for the event wait for."""
        with self._on(device):
            self._call("cudaEventRecord", event, stream)

    def is_reached(self, event: Any) -> bool:
        """Whether all is done that the event was last recorded behind."""
        try:
            self._call("cudaEventQuery", event)
        except CudaFault as fault:
            if fault.code != NOT_READY_ERROR:
                raise
            return False
        return True

    def end_event(self, event: Any) -> None:
        self._call("cudaEventDestroy", event)

    def wait_for_stream(self, stream: int, device: int) -> None:
        with self._on(device):
            self._call("cudaStreamSynchronize", stream)

    # --- Calls ---------------------------------------------------------------------------------

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        """Another current device for a moment; whose thread it is may rely on its own."""
        before = int(self._call("cudaGetDevice"))
        if before == device:
            yield
            return
        self._call("cudaSetDevice", device)
        try:
            yield
        finally:
            self._call("cudaSetDevice", before)

    def _drive(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """A call of the driver, on the current device."""
        try:
            error, *values = getattr(self._driver, name)(*arguments)
            if int(error) == NO_CONTEXT_ERROR:
                # The runtime gives a thread its context when that is first needed; this does now.
                self._call("cudaSetDevice", int(self._call("cudaGetDevice")))
                error, *values = getattr(self._driver, name)(*arguments)
        except RuntimeError as fault:
            raise CudaMissing(f"there is no NVIDIA driver ({fault})") from fault
        if int(error):
            raise CudaFault(int(error), f"CUDA driver error {int(error)} ({error.name})")
        return tuple(values)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *values = getattr(self.api, name)(*arguments)
        code = int(error)
        if code:
            self.api.cudaGetLastError()  # a later call must not be blamed for it
            raise CudaFault(code, described(self.api, error))
        return values[0] if values else None


def quietly(call: Callable[..., object], *arguments: Any) -> None:
    """For what goes with its owner: the memory or event, or the whole context, may be gone."""
    with suppress(CudaFault):
        call(*arguments)


def cuda_runtime(importer: Callable[[str], Any] = import_module) -> CudaRuntime:
    """CUDA as this process has it. Raises CudaMissing, or CudaFault for a GPU that is lost."""
    try:
        api, driver = importer(RUNTIME_MODULE), importer(DRIVER_MODULE)
    except ImportError as fault:
        raise CudaMissing(f"cuda.bindings cannot be imported ({fault}): {INSTALL}") from fault
    return CudaRuntime(api, driver)


def _device_count(api: Any) -> int:
    error, count = api.cudaGetDeviceCount()
    if not int(error) and count:
        return int(count)
    api.cudaGetLastError()
    if int(error) in STICKY_ERRORS:
        raise CudaFault(int(error), described(api, error))
    raise CudaMissing(": ".join(without_gpu(error)))


def _bytes_of(handle: Any, count: int = HANDLE_BYTES) -> bytes:
    """cuda.bindings has had no attribute for these bytes in all of its versions."""
    return ctypes.string_at(int(handle.getPtr()), count)


def _filled(handle: Any, content: bytes) -> Any:
    ctypes.memmove(int(handle.getPtr()), content, HANDLE_BYTES)
    return handle

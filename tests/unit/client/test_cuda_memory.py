"""GPU memory that a client shares, over the fake CUDA: which GPU is meant, and no guessing."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from naiad.client.cuda import CudaRegion, new_memory, shared_array
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import Region
from naiad.shm.cuda.errors import DRIVER_MODULE, RUNTIME_MODULE
from support import fake_cuda_driver, fake_cuda_ipc, fake_cudart
from support.fake_cupy import Packed

VALUES = np.arange(16, dtype=np.uint16)
ON_DEVICE = fake_cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_cudart.Device]:
    """Two of them."""
    monkeypatch.setitem(sys.modules, RUNTIME_MODULE, fake_cuda_ipc)
    monkeypatch.setitem(sys.modules, DRIVER_MODULE, fake_cuda_driver)
    device = fake_cuda_ipc.reset()
    device.count = 2
    yield device
    device.close()


def on(device: int) -> None:
    """The calling thread's current device."""
    assert int(fake_cuda_ipc.cudaSetDevice(device)[0]) == 0


def current() -> int:
    return int(fake_cuda_ipc.cudaGetDevice()[1])


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("own", [0, 1])
def test_written_waits_for_the_default_stream_of_the_regions_gpu(device: int, own: int) -> None:
    _, region = new_memory(64, device, event=False)
    begin = region.memory.address
    ctypes.memset(begin, 1, 32)
    on(device)
    fake_cuda_ipc.cudaMemcpy(begin + 32, begin, 32, ON_DEVICE)
    on(own)
    region.written()
    assert ctypes.string_at(begin + 32, 32) == b"\1" * 32
    assert current() == own, "the caller's own device stays current"


@pytest.mark.parametrize("own", [0, 1])
def test_written_records_the_event_in_that_stream(own: int) -> None:
    _, region = new_memory(64, 1, event=True)
    on(own)
    region.written()
    assert region._event.counts == (1, 1)
    assert current() == own


class Part(Packed):
    """What begins 8 bytes within its allocation."""

    def __init__(self) -> None:
        super().__init__(VALUES, "BF16")
        self.address, self.shape = self.address + 8, (12,)


def test_an_array_is_shared_from_a_thread_that_has_not_called_cuda() -> None:
    """Nothing that reads a DLPack array gives the thread a context."""
    array = Part()
    made: list[tuple[Region, CudaRegion]] = []
    thread = threading.Thread(target=lambda: made.append(shared_array(array, event=False)))
    thread.start()
    thread.join()
    ((registered, region),) = made
    tensor = region.input("x")
    assert (registered.size, tensor.offset, tensor.size) == (32, 8, 24)


@pytest.mark.parametrize("code", [1, 400])
def test_where_cuda_does_not_tell_the_allocation_nothing_is_shared(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(dptr: int) -> tuple[object, ...]:
        return fake_cudart.cudaError_t(code), None, None

    monkeypatch.setattr(fake_cuda_driver, "cuMemGetAddressRange", fails)
    with pytest.raises(RequestError, match=rf"which allocation .* driver error {code} "):
        shared_array(Part(), event=False)

"""The fake CUDA with shared memory, held to cuda.bindings: handles, and who is gone. What it calls
and returns is test_cuda_api.py's.

It needs the package, and neither a GPU nor a driver.
"""

import ctypes
from typing import Any

import pytest

import naiad.shm.cuda.runtime as calls
from naiad.shm.cuda.errors import DRIVER_MODULE, RUNTIME_MODULE
from naiad.shm.cuda.key import HANDLE_BYTES
from support import fake_cuda_ipc
from support.real_packages import real_package

real: Any = real_package(RUNTIME_MODULE, "cuda-bindings")
driver: Any = real_package(DRIVER_MODULE, "cuda-bindings")


@pytest.mark.parametrize("name", ["cudaIpcMemHandle_t", "cudaIpcEventHandle_t"])
def test_handles_are_64_bytes_behind_a_pointer(name: str) -> None:
    content = bytes(range(HANDLE_BYTES))
    for module in (real, fake_cuda_ipc):
        handle = getattr(module, name)()
        assert calls._bytes_of(calls._filled(handle, content)) == content
        assert ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES) == content


def test_uuids_are_16_bytes_behind_a_pointer() -> None:
    assert calls._bytes_of(driver.CUuuid(), calls.UUID_BYTES) == bytes(calls.UUID_BYTES)
    fake = fake_cuda_ipc.loaded().uuid(1)
    assert fake == "01010101-0101-0101-0101-010101010101"


def test_attributes_of_pointers_name_their_device() -> None:
    assert hasattr(real.cudaPointerAttributes(), "device")


def test_without_a_driver_the_real_one_is_missing_in_words() -> None:
    if int(real.cudaGetDeviceCount()[0]) == 0:
        pytest.skip("this machine has a GPU")
    with pytest.raises(calls.CudaMissing, match="cudaError"):
        calls.cuda_runtime()
    with pytest.raises(RuntimeError):  # the kind that `allocation` expects of a missing driver
        driver.cuMemGetAddressRange(1)


def test_a_late_owner_of_a_former_device_harms_nobody() -> None:
    """The garbage collection finds what an earlier test had, when another has begun."""
    fake_cuda_ipc.reset()
    cuda = fake_cuda_ipc.loaded()
    old = cuda.allocate(4096, 0)
    opened = cuda.open_memory(fake_cuda_ipc.device_of_another(bytes(4096)), 0)
    gpu = fake_cuda_ipc.reset()
    new = cuda.allocate(4096, 0)
    reopened = cuda.open_memory(fake_cuda_ipc.device_of_another(bytes(4096)), 0)
    assert len({old, opened, new, reopened}) == 4
    cuda.free(old, 0)
    cuda.close_memory(opened, 0)
    assert gpu.holds(new, 4096)
    assert gpu.holds(reopened, 4096)
    for again in (old, opened):
        with pytest.raises(calls.CudaFault, match="CUDA error 1 "):
            cuda.free(again, 0)
    cuda.free(new, 0)
    cuda.close_memory(reopened, 0)

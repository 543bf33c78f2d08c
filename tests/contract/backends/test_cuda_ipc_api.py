"""The fake CUDA with shared memory, and what is called of CUDA for it, held to cuda.bindings.

It needs the package, and neither a GPU nor a driver.
"""

import ctypes
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import naiad.shm.cuda.runtime as calls
from naiad.shm.cuda.errors import DRIVER_MODULE, RUNTIME_MODULE, STICKY_ERRORS
from naiad.shm.cuda.key import HANDLE_BYTES
from support import fake_cuda_driver, fake_cuda_ipc

REASON = "needs pip install cuda-bindings"
real: Any = pytest.importorskip(RUNTIME_MODULE, reason=REASON, exc_type=ImportError)
driver: Any = pytest.importorskip(DRIVER_MODULE, reason=REASON, exc_type=ImportError)


def functions(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if inspect.isfunction(value)]


@pytest.mark.parametrize(
    ("fake", "module", "name"),
    [
        (fake_cuda_ipc, real, name)
        for name in functions(fake_cuda_ipc)
        if re.match("cuda[A-Z]", name)
    ]
    + [(fake_cuda_driver, driver, name) for name in functions(fake_cuda_driver)],
)
def test_functions_have_the_parameters_of_the_real_ones(fake: Any, module: Any, name: str) -> None:
    own = list(inspect.signature(getattr(fake, name)).parameters)
    assert own == list(inspect.signature(getattr(module, name)).parameters)


@pytest.mark.parametrize("name", ["cudaEventInterprocess", "cudaIpcMemLazyEnablePeerAccess"])
def test_constants_are_the_real_ones(name: str) -> None:
    assert int(getattr(real, name)) == getattr(fake_cuda_ipc, name)


def test_kinds_of_copies_have_the_real_numbers() -> None:
    for member in fake_cuda_ipc.cudaMemcpyKind:
        assert int(getattr(real.cudaMemcpyKind, member.name)) == member
    assert int(driver.CUresult.CUDA_SUCCESS) == fake_cuda_driver.CUresult.CUDA_SUCCESS


@pytest.mark.parametrize("name", ["cudaIpcMemHandle_t", "cudaIpcEventHandle_t"])
def test_handles_are_64_bytes_behind_a_pointer(name: str) -> None:
    content = bytes(range(HANDLE_BYTES))
    for module in (real, fake_cuda_ipc):
        handle = getattr(module, name)()
        assert calls._bytes_of(calls._filled(handle, content)) == content
        assert ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES) == content


def test_attributes_of_pointers_name_their_device() -> None:
    assert hasattr(real.cudaPointerAttributes(), "device")


def test_whatever_is_called_is_in_both() -> None:
    source = Path(str(calls.__file__)).read_text()
    used = set(re.findall(r"\bcu(?:da)?[A-Z]\w+", source))
    used = {name for name in used if not hasattr(fake_cuda_ipc.cudaMemcpyKind, name)}
    assert len(used) > 20
    assert hasattr(driver, "cuMemGetAddressRange")
    used.remove("cuMemGetAddressRange")
    assert [name for name in used if not hasattr(real, name)] == []
    assert [name for name in used if not hasattr(fake_cuda_ipc, name)] == []


def test_sticky_errors_are_errors_and_the_same_everywhere() -> None:
    assert {int(error) for error in real.cudaError_t} >= STICKY_ERRORS
    assert STICKY_ERRORS == fake_cuda_ipc.STICKY


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

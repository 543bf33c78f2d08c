"""Errors after which a process can do nothing more on its GPU, whatever engine met them."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from naiad.shm.cuda.errors import RUNTIME_MODULE, STICKY_ERRORS, STICKY_WORDS, UNKNOWN_ERROR
from naiad.worker import gpu_health
from naiad.worker.backends.base import InstanceLost
from naiad.worker.gpu_health import GpuHealth, loaded_driver
from support.real_packages import real_package

TORCH = "RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors"
ORT = "ONNX Runtime: CUDA failure 719: unspecified launch failure ; GPU=0 ; hostname=h"
CUPY = "CUDARuntimeError: cudaErrorAssert: device-side assert triggered"


class FakeDriver:
    """libcuda with one device, as C has it: results in place, and the error returned."""

    DEVICE, CONTEXT = 7, 1 << 40

    def __init__(self, errors: dict[str, int], *, is_active: bool = True) -> None:
        self._errors = errors
        self._is_active = is_active
        self._current: list[int] = []
        self.held = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            error = self._errors.get(name)
            if error:
                return lambda *_: error
        return object.__getattribute__(self, name)

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        assert ordinal == 0
        device._obj.value = self.DEVICE
        return 0

    def cuDevicePrimaryCtxGetState(self, device: ctypes.c_int, flags: Any, active: Any) -> int:
        assert device.value == self.DEVICE
        flags._obj.value, active._obj.value = 4, self._is_active
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:
        assert self._is_active, "this would make a context"
        assert device.value == self.DEVICE
        context._obj.value = self.CONTEXT
        self.held += 1
        return 0

    def cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> int:
        assert context.value == self.CONTEXT
        self._current.append(self.CONTEXT)
        return 0

    def cuCtxSynchronize(self) -> int:
        assert self._current
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self._current.pop()
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: ctypes.c_int) -> int:
        assert not self._current
        assert device.value == self.DEVICE
        self.held -= 1
        return 0


def broken(code: int, call: str = "cuCtxSynchronize") -> FakeDriver:
    return FakeDriver({call: code})


def health(driver: FakeDriver | None) -> GpuHealth:
    return GpuHealth("m", "GPU-a", lambda: driver)


@pytest.mark.parametrize(("text", "code"), [(TORCH, 700), (ORT, 719), (CUPY, 710)])
def test_words_of_cuda_end_the_process_where_the_driver_says_so(text: str, code: int) -> None:
    driver = broken(code)
    with pytest.raises(InstanceLost, match=rf"'m' on GPU-a: CUDA error {code} \("):
        health(driver).check(text)
    assert driver.held == 0


@pytest.mark.parametrize(
    "call",
    ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain",
     "cuCtxPushCurrent_v2"],
)  # fmt: skip
def test_a_driver_that_answers_any_call_with_the_error_says_so(call: str) -> None:
    driver = broken(700, call)
    with pytest.raises(InstanceLost, match="CUDA error 700 "):
        health(driver).check(TORCH)
    assert driver.held == 0


@pytest.mark.parametrize("driver", [FakeDriver({}), FakeDriver({}, is_active=False), None])
@pytest.mark.parametrize("text", [TORCH, f"ValueError: cannot parse '{TORCH}'"])
def test_words_alone_do_not(driver: FakeDriver | None, text: str) -> None:
    health(driver).check(text)


def test_words_alone_do_not_where_no_engine_has_loaded_the_driver() -> None:
    assert loaded_driver() is None
    GpuHealth("m", "GPU-a").check(TORCH)


def test_the_driver_is_the_library_that_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_health, "DRIVER_LIBRARY", "libc.so.6")
    assert loaded_driver().abs(-3) == 3


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: misaligned address",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: invalid argument",
        "",
    ],
)
def test_other_errors_are_the_model_s(text: str) -> None:
    health(broken(700)).check(text)


def test_the_words_are_cuda_s() -> None:
    runtime: Any = real_package(RUNTIME_MODULE, "cuda-bindings")
    told = {
        code: runtime.cudaGetErrorString(runtime.cudaError_t(code))[1].decode()
        for code in STICKY_WORDS
    }
    assert told == STICKY_WORDS


UNSAID = {214, 220, 709, UNKNOWN_ERROR}
"""Hardware errors, a context that is gone and what CUDA does not know: its own text does not say
that they stay."""


def test_errors_that_stay_are_those_of_which_cuda_says_so() -> None:
    runtime: Any = real_package(RUNTIME_MODULE, "cuda-bindings")
    said = {
        int(error)
        for error in runtime.cudaError_t
        if re.search(r"process\s+must\s+be\s+terminated|inconsistent\s+state", error.__doc__ or "")
    }
    assert len(said) > 10
    assert said | UNSAID == STICKY_ERRORS
    assert not said & UNSAID


SIGNATURES = {
    "cuInit": "unsigned int Flags",
    "cuDeviceGet": "CUdevice* device, int ordinal",
    "cuDevicePrimaryCtxGetState": "CUdevice dev, unsigned int* flags, int* active",
    "cuDevicePrimaryCtxRetain": "CUcontext* pctx, CUdevice dev",
    "cuCtxPushCurrent_v2": "CUcontext ctx",
    "cuCtxSynchronize": "",
    "cuCtxPopCurrent_v2": "CUcontext* pctx",
    "cuDevicePrimaryCtxRelease_v2": "CUdevice dev",
}


def test_the_calls_are_the_driver_s() -> None:
    """As the real bindings declare the symbols that they look for in it; versions are part of the
    name."""
    assert {name for name in vars(FakeDriver) if name.startswith("cu")} == SIGNATURES.keys()
    runtime: Any = real_package(RUNTIME_MODULE, "cuda-bindings")
    text = (Path(runtime.__file__).parent / "_internal" / "driver.pxd").read_text()
    declared = dict(re.findall(r"^cdef CUresult _(\w+)\((.*)\) except", text, re.MULTILINE))
    assert {name: declared.get(name) for name in SIGNATURES} == SIGNATURES

"""Errors after which a process can do nothing more on its GPU, whatever engine met them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from naiad.shm.cuda.errors import DRIVER_MODULE, RUNTIME_MODULE, STICKY_WORDS
from naiad.worker.backends.base import InstanceLost
from naiad.worker.gpu_health import GpuHealth
from support.real_packages import real_package

TORCH = "RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors"
ORT = "ONNX Runtime: CUDA failure 719: unspecified launch failure ; GPU=0 ; hostname=h"
CUPY = "CUDARuntimeError: cudaErrorAssert: device-side assert triggered"


class FakeCuda:
    """Driver and runtime in one; `error` is what the context answers."""

    def __init__(self, error: int, *, is_active: bool = True) -> None:
        self._error = error
        self._is_active = is_active

    def cuInit(self, Flags: int) -> tuple[int]:
        return (0,)

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDevicePrimaryCtxGetState(self, dev: int) -> tuple[int, int, bool]:
        return 0, 0, self._is_active

    def cudaDeviceSynchronize(self) -> tuple[int]:
        assert self._is_active, "this would make a context"
        return (self._error,)


def health(cuda: FakeCuda | None) -> GpuHealth:
    def load(name: str) -> Any:
        if cuda is None:
            raise ModuleNotFoundError(name)
        return cuda

    return GpuHealth("m", "GPU-a", load)


@pytest.mark.parametrize(("text", "code"), [(TORCH, 700), (ORT, 719), (CUPY, 710)])
@pytest.mark.parametrize("asked", [True, False])
def test_words_of_cuda_end_the_process(text: str, code: int, asked: bool) -> None:
    with pytest.raises(InstanceLost, match=rf"'m' on GPU-a: CUDA error {code} \("):
        health(FakeCuda(code) if asked else None).check(text)


@pytest.mark.parametrize("cuda", [FakeCuda(0), FakeCuda(700, is_active=False)])
def test_words_alone_do_not_where_cuda_says_otherwise(cuda: FakeCuda) -> None:
    health(cuda).check(TORCH)


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
    health(FakeCuda(700)).check(text)


def test_a_driver_that_is_not_there_cannot_be_asked() -> None:
    class Driverless(FakeCuda):
        def cuInit(self, Flags: int) -> tuple[int]:
            raise RuntimeError("cannot open libcuda.so.1")

    with pytest.raises(InstanceLost):
        health(Driverless(0)).check(TORCH)


def test_the_words_are_cuda_s() -> None:
    runtime: Any = real_package(RUNTIME_MODULE, "cuda-bindings")
    told = {
        code: runtime.cudaGetErrorString(runtime.cudaError_t(code))[1].decode()
        for code in STICKY_WORDS
    }
    assert told == STICKY_WORDS


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (DRIVER_MODULE, FakeCuda.cuInit),
        (DRIVER_MODULE, FakeCuda.cuDeviceGet),
        (DRIVER_MODULE, FakeCuda.cuDevicePrimaryCtxGetState),
        (RUNTIME_MODULE, FakeCuda.cudaDeviceSynchronize),
    ],
)
def test_the_calls_are_cuda_s(module: str, function: Callable[..., Any]) -> None:
    real = getattr(real_package(module, "cuda-bindings"), function.__name__)
    assert [*inspect.signature(function).parameters][1:] == [*inspect.signature(real).parameters]

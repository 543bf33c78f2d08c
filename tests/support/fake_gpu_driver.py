"""CUDA's driver interface without a GPU: modules, and the kernels of scripts/gpu_checks in Python.

A kernel runs on the thread of its stream, reads and writes at the raw addresses it was given, and
traps where these are no device memory.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from support import fake_cudart
from support.fake_cuda_driver import (  # noqa: F401
    CUresult,
    cuDeviceGet,
    cuDeviceGetUuid,
    cuMemGetAddressRange,
)
from support.fake_streams import Trap

ENTRIES = re.compile(rb'(?:extern "C" __global__ void|\.entry) (\w+)')
NAME = b"Fake GPU"
SPIN_SECONDS = 0.0005
"""The end of a wait is not slept: the host's timer is late."""


def cuInit(Flags: int) -> tuple[CUresult]:
    return (CUresult.CUDA_SUCCESS,)


def cuDeviceGetName(length: int, dev: int) -> tuple[CUresult, bytes]:
    return CUresult.CUDA_SUCCESS, NAME.ljust(length, b"\0")


def cuModuleLoadData(image: bytes) -> tuple[CUresult, Any]:
    return CUresult.CUDA_SUCCESS, set(ENTRIES.findall(image))


def cuModuleGetFunction(hmod: set[bytes], name: bytes) -> tuple[CUresult, Any]:
    if name not in hmod:
        return CUresult.CUDA_ERROR_NOT_FOUND, None
    return CUresult.CUDA_SUCCESS, KERNELS[name]


def cuLaunchKernel(
    f: Callable[..., None],
    gridDimX: int,
    gridDimY: int,
    gridDimZ: int,
    blockDimX: int,
    blockDimY: int,
    blockDimZ: int,
    sharedMemBytes: int,
    hStream: int,
    kernelParams: tuple[Sequence[Any], Sequence[Any]],
    extra: int,
) -> tuple[CUresult]:
    values, types = kernelParams
    taken = [kind(value).value or 0 for kind, value in zip(types, values, strict=True)]
    fake_cudart.device.streams[hStream].add(lambda: f(*taken))
    return (CUresult.CUDA_SUCCESS,)


def affine(x: int, y: int, count: int, busy_ns: int, stamps: int, stamps_max: int) -> None:
    """As in kernels.cu."""
    begin = time.perf_counter_ns()
    if count:
        if not all(fake_cudart.device.holds(address, 4 * count) for address in (x, y)):
            raise Trap(700)
        given, made = (_array(address, ctypes.c_float, count) for address in (x, y))
        np.add(np.float32(2) * given, np.float32(1), out=made)
    _wait_until(begin + busy_ns)
    if stamps:
        noted = _array(stamps, ctypes.c_uint64, 1 + 2 * stamps_max)
        place = 1 + 2 * (int(noted[0]) % stamps_max)
        noted[0] += np.uint64(1)
        noted[place : place + 2] = begin, time.perf_counter_ns()


def trap_now() -> None:
    raise Trap(719)


KERNELS: dict[bytes, Callable[..., None]] = {b"affine": affine, b"trap_now": trap_now}


def _array(address: int, kind: Any, count: int) -> Any:
    return np.frombuffer((kind * count).from_address(address), kind)


def _wait_until(end_ns: int) -> None:
    left = (end_ns - time.perf_counter_ns()) / 1e9
    if left > SPIN_SECONDS:
        time.sleep(left - SPIN_SECONDS)
    while time.perf_counter_ns() < end_ns:
        time.sleep(0)

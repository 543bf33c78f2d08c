"""CUDA's driver interface without a GPU: the little of cuda.bindings.driver that is called."""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import Any

from support import fake_cudart


class Thread(threading.local):
    """The calling thread: the device whose context it has, None until the runtime needs one."""

    device: int | None = None


thread = Thread()


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_FOUND = 500


def cuMemGetAddressRange(dptr: int) -> tuple[Any, ...]:
    """The allocation around an address, for a thread that has a context."""
    if thread.device is None:
        return CUresult.CUDA_ERROR_INVALID_CONTEXT, None, None
    for address, (size, _) in fake_cudart.device.memory.items():
        if address <= int(dptr) < address + size:
            return CUresult.CUDA_SUCCESS, address, size
    return CUresult.CUDA_ERROR_NOT_FOUND, None, None

"""CUDA's driver interface without a GPU: the little of cuda.bindings.driver that is called."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from support import fake_cudart


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_FOUND = 500


def cuMemGetAddressRange(dptr: int) -> tuple[Any, ...]:
    """The allocation around an address."""
    for address, (size, _) in fake_cudart.device.memory.items():
        if address <= int(dptr) < address + size:
            return CUresult.CUDA_SUCCESS, address, size
    return CUresult.CUDA_ERROR_NOT_FOUND, None, None

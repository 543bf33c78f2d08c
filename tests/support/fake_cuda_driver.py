"""CUDA's driver interface without a GPU: the little of cuda.bindings.driver that is called."""

from __future__ import annotations

import ctypes
import os
import threading
from enum import IntEnum
from typing import Any

from naiad.config.gpus import VISIBLE_VARIABLE
from support import fake_cudart


class Thread(threading.local):
    """The calling thread: the device whose context it has, None until the runtime needs one."""

    device: int | None = None


thread = Thread()


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_FOUND = 500


class CUuuid:
    """16 bytes behind a pointer."""

    def __init__(self, content: bytes) -> None:
        self._content = ctypes.create_string_buffer(content, len(content))

    def getPtr(self) -> int:
        return ctypes.addressof(self._content)


def cuDeviceGet(ordinal: int) -> tuple[Any, ...]:
    return CUresult.CUDA_SUCCESS, ordinal


def cuDeviceGetUuid(dev: int) -> tuple[Any, ...]:
    """Digits of CUDA_VISIBLE_DEVICES with zeros behind; without it 00, 01 and so on, repeated."""
    words = [word for word in os.environ.get(VISIBLE_VARIABLE, "").split(",") if word]
    digits = words[dev].partition("-")[2] if words else f"{dev:02x}" * 16
    return CUresult.CUDA_SUCCESS, CUuuid(bytes.fromhex(digits.ljust(32, "0")))


def cuMemGetAddressRange(dptr: int) -> tuple[Any, ...]:
    """The allocation around an address, for a thread that has a context."""
    if thread.device is None:
        return CUresult.CUDA_ERROR_INVALID_CONTEXT, None, None
    for address, (size, _) in fake_cudart.device.memory.items():
        if address <= int(dptr) < address + size:
            return CUresult.CUDA_SUCCESS, address, size
    return CUresult.CUDA_ERROR_NOT_FOUND, None, None

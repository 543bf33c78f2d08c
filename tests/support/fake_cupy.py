"""Arrays on the fake GPU as other libraries have them: told by the interface, or by DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naiad.shm.cuda.arrays import is_packed
from naiad.shm.cuda.dlpack import CUDA_DEVICE, new_capsule, read_capsule
from support import fake_cuda_ipc

Array = NDArray[Any]


class Interfaced:
    """As CuPy's: `__cuda_array_interface__`. `offset` bytes of its allocation lie before it."""

    def __init__(self, content: Array, *, offset: int = 0, **changed: Any) -> None:
        self.allocated = int(fake_cuda_ipc.cudaMalloc(offset + content.nbytes)[1])
        self.address = self.allocated + offset
        ctypes.memmove(self.address, content.ctypes.data, content.nbytes)
        self.__cuda_array_interface__ = {
            "shape": content.shape,
            "typestr": content.dtype.str,
            "data": (self.address, False),
            "version": 3,
            **changed,
        }


class Packed:
    """As PyTorch's bfloat16, which only DLPack can tell: `datatype` in KServe's words."""

    def __init__(self, content: Array, datatype: str, *, device_type: int = CUDA_DEVICE) -> None:
        self.address = int(fake_cuda_ipc.cudaMalloc(content.nbytes)[1])
        self.shape, self.datatype = content.shape, datatype
        self.device_type = device_type
        ctypes.memmove(self.address, content.ctypes.data, content.nbytes)

    @property
    def __cuda_array_interface__(self) -> Any:
        raise TypeError("no bfloat16 there")

    def __dlpack__(self, **_: object) -> object:
        return new_capsule(self.address, 0, self.datatype, self.shape, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, 0


def values(array: Any, dtype: str = "float32") -> Array:
    """What an array on the fake GPU holds, found as another library finds it."""
    found = read_capsule(array.__dlpack__())
    assert is_packed(found.shape, found.strides)
    count = int(np.prod(found.shape, dtype=int))
    content = ctypes.string_at(found.address, count * np.dtype(dtype).itemsize)
    return np.frombuffer(content, dtype).reshape(found.shape)

"""DLPack on the CPU: arrays out to other frameworks and tensors of theirs in, without a copy.

NumPy speaks DLPack but has no BF16; there the type in the capsule is rewritten between BF16 and
uint16 (of the same bits) before somebody else looks at it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from naiad.worker.backends.triton_python.errors import TritonModelException

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

CPU: Final = (1, 0)
_CPU_DEVICES: Final = (1, 3)
"""kDLCPU, and kDLCUDAHost: pinned memory of the host."""

_UINT, _BFLOAT = 1, 4


class _TensorHead(ctypes.Structure):
    """The beginning of DLTensor, as dlpack.h lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _Holder:
    """Gives NumPy a capsule that was made already."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


def to_capsule(array: Array, datatype: str) -> object:
    """A capsule over the array's memory; a read-only array is copied, as DLPack cannot say so."""
    if datatype == "BYTES":
        raise TritonModelException("DLPack has no strings; use as_numpy()")
    capsule: object = (array if array.flags.writeable else array.copy()).__dlpack__()
    if datatype == "BF16":
        _head(capsule).type_code = _BFLOAT
    return capsule


def from_capsule(source: Any) -> tuple[str | None, Array]:
    """(BF16 or None, a contiguous array) of a capsule or of an object with __dlpack__.

    Raises TritonModelException for a tensor on another device or of a type no tensor has.
    """
    capsule = source.__dlpack__() if hasattr(source, "__dlpack__") else source
    head = _head(capsule)
    if head.device_type not in _CPU_DEVICES:
        raise TritonModelException(
            f"from_dlpack: the tensor is on the DLPack device ({head.device_type}, "
            f"{head.device_id}); device memory is not in this release of naiad, move it to the "
            "CPU first"
        )
    is_bfloat = head.type_code == _BFLOAT
    if is_bfloat:
        head.type_code = _UINT
    try:
        array = np.from_dlpack(_Holder(capsule))  # type: ignore[arg-type]
    except (RuntimeError, BufferError, TypeError) as error:
        raise TritonModelException(
            f"from_dlpack: no tensor of DLPack type code {head.type_code} with "
            f"{head.type_bits} bits ({error})"
        ) from error
    return "BF16" if is_bfloat else None, np.asarray(array, order="C")


def _head(capsule: object) -> _TensorHead:
    try:
        address = _pointer(capsule, b"dltensor")
    except ValueError as error:
        raise TritonModelException(
            "from_dlpack: expected an unused DLPack capsule or an object with __dlpack__, got "
            f"{type(capsule).__name__}"
        ) from error
    return _TensorHead.from_address(address)

"""DLPack: arrays out to other frameworks and tensors of theirs in, without a copy.

NumPy speaks DLPack but has no BF16; there the type in the capsule is rewritten between BF16 and
uint16 (of the same bits) before somebody else looks at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from naiad.shm.cuda.arrays import DeviceArray, is_packed
from naiad.shm.cuda.dlpack import (
    CUDA_DEVICE,
    TYPE_CODES,
    DLTensor,
    read_capsule,
    tensor_in,
)
from naiad.worker.backends.triton_python.errors import TritonModelException

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

CPU: Final = (1, 0)
_CPU_DEVICES: Final = (1, 3)
"""kDLCPU, and kDLCUDAHost: pinned memory of the host."""

_DEFAULT_STREAM: Final = 1
"""CUDA's legacy default stream, as DLPack numbers it: the one that results are copied on."""

_UINT, _BFLOAT = TYPE_CODES["UINT"], TYPE_CODES["BF"]


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


def from_capsule(source: Any) -> tuple[str | None, Array | DeviceArray]:
    """(BF16 or None, a contiguous array) of a capsule or of an object with __dlpack__.

    What is on a GPU stays there: a DeviceArray, whose bytes are complete for CUDA's default stream
    if an object gave it; who gives a capsule has waited for its own stream. Raises
    TritonModelException for a tensor on another device or of a type no tensor has.
    """
    capsule = _capsule_of(source)
    head = _head(capsule)
    if head.device_type == CUDA_DEVICE:
        return None, _on_gpu(capsule)
    if head.device_type not in _CPU_DEVICES:
        raise TritonModelException(
            f"from_dlpack: the tensor is on the DLPack device ({head.device_type}, "
            f"{head.device_id}); expected the CPU or a CUDA GPU, move it there first"
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


def _capsule_of(source: Any) -> object:
    if not hasattr(source, "__dlpack__"):
        return source
    if hasattr(source, "__dlpack_device__") and int(source.__dlpack_device__()[0]) == CUDA_DEVICE:
        return source.__dlpack__(stream=_DEFAULT_STREAM)
    return source.__dlpack__()


def _on_gpu(capsule: object) -> DeviceArray:
    found = read_capsule(capsule)
    if not found.datatype or not is_packed(found.shape, found.strides):
        raise TritonModelException(
            "from_dlpack: expected a tensor of a datatype that Triton has, contiguous in C order, "
            f"got {found.datatype or 'another datatype'} {list(found.shape)} with strides of "
            f"{found.strides} elements; call contiguous() first"
        )
    return DeviceArray(found.address, found.device, found.datatype, found.shape, capsule)


def _head(capsule: object) -> DLTensor:
    try:
        return tensor_in(capsule)
    except ValueError as error:
        raise TritonModelException(
            "from_dlpack: expected an unused DLPack capsule or an object with __dlpack__, got "
            f"{type(capsule).__name__}"
        ) from error

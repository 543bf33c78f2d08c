"""DLPack for memory of a GPU: what others' capsules say, and capsules of our own, without a copy.

The structures are those of dlpack.h, version 0, which every library takes. Owns the descriptions
that its capsules point to, until their consumers give them back.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, Final, NamedTuple

from naiad.protocol.datatypes import ITEM_BYTES

CUDA_DEVICE: Final = 2
"""kDLCUDA."""
_NAME: Final = b"dltensor"

TYPE_CODES: Final = {"INT": 0, "UINT": 1, "FP": 2, "BF": 4, "BOOL": 6}
_KIND_OF: Final = {code: kind for kind, code in TYPE_CODES.items()}


class DLTensor(ctypes.Structure):
    """As dlpack.h lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_Call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_python: Final = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Call)
_pointer: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_raw_pointer: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_is_unused: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python)
)

_lent: Final[dict[int, tuple[Any, ...]]] = {}
"""What each description that somebody has keeps alive, by its address."""


class DeviceTensor(NamedTuple):
    """`strides` count elements; None: packed, in C order. `datatype` "": KServe has none for it."""

    address: int
    device_type: int
    device: int
    datatype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


def tensor_in(capsule: object) -> DLTensor:
    """The description itself, which may be changed. Raises ValueError for no unused capsule."""
    tensor: DLTensor = _Managed.from_address(_pointer(capsule, _NAME)).tensor
    return tensor


def read_capsule(capsule: object) -> DeviceTensor:
    """What an unused capsule describes. Raises ValueError for anything else."""
    found = tensor_in(capsule)
    kind = _KIND_OF.get(found.type_code, "")
    datatype = "BOOL" if kind == "BOOL" else f"{kind}{found.type_bits}"
    if datatype not in ITEM_BYTES or found.type_lanes != 1:
        datatype = ""
    return DeviceTensor(
        (found.data or 0) + found.byte_offset,
        found.device_type,
        found.device_id,
        datatype,
        tuple(found.shape[: found.ndim]),
        tuple(found.strides[: found.ndim]) if found.strides else None,
    )


def new_capsule(
    address: int, device: int, datatype: str, shape: tuple[int, ...], keep: object
) -> object:
    """A capsule over packed memory of a GPU; `keep` lives until its consumer needs it no more."""
    kind = datatype.rstrip("0123456789")
    rank = max(1, len(shape))
    sizes = (ctypes.c_int64 * rank)(*shape)
    # Later versions want strides also where all is packed.
    strides = (ctypes.c_int64 * rank)(*[prod(shape[axis + 1 :]) for axis in range(len(shape))])
    made = _Managed()
    made.tensor = DLTensor(
        address,
        CUDA_DEVICE,
        device,
        len(shape),
        TYPE_CODES[kind],
        int(datatype.removeprefix(kind) or 8),
        1,
        sizes,
        strides,
        0,
    )
    made.deleter = ctypes.cast(_give_back, ctypes.c_void_p).value
    place = ctypes.addressof(made)
    _lent[place] = (made, sizes, strides, keep)
    capsule: object = _python.PyCapsule_New(place, _NAME, _end_capsule)
    return capsule


def _given_back(place: int) -> None:
    """Called by who consumed a capsule, in any thread."""
    _lent.pop(place, None)


def _capsule_ended(capsule: int) -> None:
    """A capsule dies; if nobody has consumed it, nobody else gives it back."""
    if _is_unused(capsule, _NAME):
        _lent.pop(_raw_pointer(capsule, _NAME), None)


_give_back: Final = _Call(_given_back)
_end_capsule: Final = _Call(_capsule_ended)

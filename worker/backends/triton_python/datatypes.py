"""Triton's numbers and texts for datatypes, and the packed form of strings."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from naiad.protocol.datatypes import CONFIG_NAME, FROM_CONFIG, LENGTH_PREFIX_BYTES, NUMPY_NAME
from naiad.worker.backends.triton_python.errors import TritonModelException

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

DATATYPE_NUMBER: Final = {
    **{name: number for number, name in enumerate(NUMPY_NAME, start=1)},
    "BYTES": 13,
    "BF16": 14,
}
"""The numbers of TRITONSERVER_DataType and of the config's DataType."""

_LENGTH = struct.Struct("<I")
_SCALAR: Final[dict[str, type[Any]]] = {
    **{name: np.dtype(numpy_name).type for name, numpy_name in NUMPY_NAME.items()},
    "BYTES": np.object_,
}
_DATATYPE: Final = {numpy_name: name for name, numpy_name in NUMPY_NAME.items()}
_NATIVE: Final = {np.dtype(numpy_name): name for name, numpy_name in NUMPY_NAME.items()}
"""By dtype, for the usual ones: asking a dtype for its name takes NumPy several microseconds."""


def array_datatype(array: Array) -> str:
    """The datatype an array holds, its own: nothing is converted.

    Raises TritonModelException for a dtype that no tensor has.
    """
    datatype = _NATIVE.get(array.dtype) or _datatype(array.dtype)
    if datatype is None:
        raise TritonModelException(
            f"NumPy arrays of {array.dtype} cannot be tensors; expected one of "
            f"{', '.join(_DATATYPE)}, or an object array of bytes or str"
        )
    return datatype


def _datatype(dtype: np.dtype[Any]) -> str | None:
    if dtype.kind in "OSU":
        return "BYTES"
    return "BF16" if dtype.name == "bfloat16" else _DATATYPE.get(dtype.name)


def string_elements(array: Array) -> list[bytes | str]:
    """The elements in row-major order; what is neither bytes nor str as str() shows it."""
    return [
        element if isinstance(element, bytes | str) else str(element)
        for element in array.ravel().tolist()
    ]


def triton_to_numpy_type(data_type: int) -> type[Any]:
    """The NumPy type of a datatype's number; strings (13) are np.object_."""
    for name, number in DATATYPE_NUMBER.items():
        if number == data_type and name in _SCALAR:
            return _SCALAR[name]
    raise TritonModelException(f"no NumPy type for the Triton datatype {data_type!r}")


def numpy_to_triton_type(data_type: Any) -> int:
    """The number of the datatype that a NumPy type or dtype has."""
    datatype = _datatype(np.dtype(data_type))
    if datatype is None:
        raise TritonModelException(f"no Triton datatype for the NumPy type {data_type!r}")
    return DATATYPE_NUMBER[datatype]


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """The NumPy type of a config's data_type such as "TYPE_FP32"; TYPE_STRING is np.object_."""
    name = FROM_CONFIG.get(triton_type_string, "")
    if name not in _SCALAR:
        raise TritonModelException(
            f'no NumPy type for "{triton_type_string}"; expected one of '
            f"{', '.join(CONFIG_NAME[known] for known in _SCALAR)}"
        )
    return _SCALAR[name]


def serialize_byte_tensor(input_tensor: Array) -> bytes:
    """Every element behind its length (uint32, little-endian), in row-major order."""
    if input_tensor.dtype.kind not in "OSU":
        raise TritonModelException(
            f"serialize_byte_tensor: expected an array of strings, got {input_tensor.dtype}"
        )
    parts: list[bytes] = []
    for element in string_elements(input_tensor):
        content = element if isinstance(element, bytes) else element.encode()
        parts += (_LENGTH.pack(len(content)), content)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: bytes | bytearray | memoryview) -> Array:
    """The elements as a 1-D object array of bytes.

    Raises TritonModelException when a length reaches beyond the end.
    """
    view = memoryview(encoded_tensor).cast("B")
    elements: list[bytes] = []
    offset, end = 0, len(view)
    while offset < end:
        begin = offset + LENGTH_PREFIX_BYTES
        following = begin + _LENGTH.unpack_from(view, offset)[0] if begin <= end else end + 1
        if following > end:
            raise TritonModelException(
                f"deserialize_bytes_tensor: element {len(elements)} at byte {offset} reaches "
                f"beyond the end of {end} bytes"
            )
        elements.append(bytes(view[begin:following]))
        offset = following
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array

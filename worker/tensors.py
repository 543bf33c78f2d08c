"""Tensor bytes to values and back: lazily made arrays, BYTES with every length prefix checked.

NumPy is imported inside the functions that need it: a model that moves bytes only never loads it.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from naiad.protocol.datatypes import LENGTH_PREFIX_BYTES, NUMPY_NAME, element_count
from naiad.protocol.errors import RequestError

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

_prefix: Final = Struct("<I")


class Input:
    """One input of one request, as worker.backends.base.InputTensor promises it."""

    __slots__ = ("_array", "buffer", "datatype", "name", "shape")

    def __init__(
        self, name: str, datatype: str, shape: tuple[int, ...], buffer: memoryview
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.buffer = buffer
        self._array: Array | None = None

    def array(self) -> Array:
        """Read-only NumPy view of `buffer` (a copy where the bytes are not aligned).

        BYTES give an object array of bytes, BF16 its bits as uint16.
        """
        if self._array is None:
            self._array = to_array(self.datatype, self.shape, self.buffer)
        return self._array


def to_array(datatype: str, shape: tuple[int, ...], buffer: memoryview) -> Array:
    """An array of `shape` over packed bytes; the bytes must have exactly that size."""
    import numpy as np

    if datatype == "BYTES":
        flat = np.empty(element_count(shape), dtype=object)
        offsets = bytes_offsets(buffer, len(flat))
        start = LENGTH_PREFIX_BYTES
        for index, (offset, following) in enumerate(pairwise(offsets)):
            flat[index] = bytes(buffer[offset + start : following])
        flat.flags.writeable = False
        return flat.reshape(shape)
    dtype = np.dtype(NUMPY_NAME.get(datatype, "uint16"))
    if not len(buffer):
        return np.empty(shape, dtype=dtype)
    found = np.frombuffer(buffer, dtype=dtype).reshape(shape)
    return found if found.flags.aligned else _private(found)


def _private(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def bytes_offsets(buffer: memoryview | bytes, count: int) -> list[int]:
    """Where each element of a BYTES tensor begins, and the end: count + 1 offsets.

    The buffer must be private: a peer that changes it meanwhile could change a checked prefix.
    Raises RequestError when a prefix is cut off, when an element reaches beyond the end, or when
    there are not exactly `count` elements (as Triton's ValidateBytesInputs, but for all of them).
    """
    size = len(buffer)
    offsets = [0]
    offset = 0
    read = _prefix.unpack_from
    while offset < size:
        if len(offsets) > count:
            raise RequestError(f"expected {count} string elements, got more")
        if offset + LENGTH_PREFIX_BYTES > size:
            raise RequestError(
                f"string element {len(offsets) - 1}: expected a length of {LENGTH_PREFIX_BYTES} "
                f"bytes, got {size - offset} bytes"
            )
        length = read(buffer, offset)[0]
        offset += LENGTH_PREFIX_BYTES + length
        if offset > size:
            raise RequestError(
                f"string element {len(offsets) - 1}: its length says {length} bytes, "
                f"only {size - offset + length} are left"
            )
        offsets.append(offset)
    if len(offsets) != count + 1:
        raise RequestError(f"expected {count} string elements, got {len(offsets) - 1}")
    return offsets


def pack_array(datatype: str, array: Array) -> memoryview:
    """The packed bytes of an array, without a copy when it is contiguous already.

    BYTES take object arrays of bytes or str (as UTF-8) and NumPy's S and U kinds, flattened in
    row-major order. Raises TypeError when the array's dtype does not fit the datatype.
    """
    import numpy as np

    if datatype == "BYTES":
        return memoryview(pack_bytes(array.ravel().tolist()))
    expected = np.dtype(NUMPY_NAME.get(datatype, "uint16"))
    if array.dtype.name != expected.name:
        raise TypeError(f"expected an array of {expected.name}, got {array.dtype.name}")
    flat = np.ascontiguousarray(array, dtype=expected)  # other byte orders become little-endian
    return flat.reshape(-1).view(np.uint8).data if flat.size else memoryview(b"")


def pack_bytes(elements: list[Any]) -> bytes:
    """BYTES elements, each behind its length. Raises TypeError for anything but bytes and str."""
    parts = []
    for element in elements:
        if isinstance(element, str):
            element = element.encode()
        elif not isinstance(element, bytes | bytearray | memoryview):
            raise TypeError(f"expected bytes or str elements, got {type(element).__name__}")
        parts.append(_prefix.pack(len(element)))
        parts.append(bytes(element))
    return b"".join(parts)

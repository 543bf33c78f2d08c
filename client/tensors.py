"""NumPy arrays to (datatype, shape, bytes) and back; the one place of the client that knows dtypes.

Owns the conversion of BYTES (uint32 little-endian length and bytes, per element) and of BF16 (its
bits as uint16, since NumPy has no such type). Arrays that come back own their memory or keep alive
what they look into.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.client.requests import INLINE, SMALL_BYTES_MAX, Buffer, PackedInput
from naiad.client.texts import unfit_text
from naiad.protocol.datatypes import ITEM_BYTES, LENGTH_PREFIX_BYTES, NUMPY_NAME, element_count
from naiad.protocol.errors import Code, ModelError, RequestError

Array = npt.NDArray[Any]

_DTYPE_OF: Final[dict[str, np.dtype[Any]]] = {
    wire: np.dtype(name).newbyteorder("<") for wire, name in NUMPY_NAME.items()
} | {"BF16": np.dtype("<u2")}
_DATATYPE_OF: Final[dict[np.dtype[Any], str]] = {
    np.dtype(name): wire for wire, name in NUMPY_NAME.items()
}
_TEXT_KINDS: Final = "OSUT"
"""Objects, np.bytes_, np.str_ and StringDType."""
_ML_DTYPES_NAME: Final = "bfloat16"
"""What the package ml_dtypes (JAX, TensorFlow) registers with NumPy."""
_length: Final = struct.Struct("<I")


class Bfloat16Bits(np.ndarray[Any, Any]):
    """A uint16 array whose elements are the bits of BF16 values; made by `to_bfloat16`."""


def to_bfloat16(array: npt.ArrayLike) -> Bfloat16Bits:
    """Values as BF16 bits (uint16), rounded to nearest even; NaN stays NaN."""
    values = np.ascontiguousarray(array, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)) >> 16
    quiet = (bits >> 16) | 0x40
    out = np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
    return out.reshape(np.shape(array)).view(Bfloat16Bits)


def from_bfloat16(bits: Array) -> npt.NDArray[np.float32]:
    """BF16 bits (a uint16 array) as float32, exactly."""
    wide = np.asarray(bits, dtype=np.uint16).astype(np.uint32) << 16
    return wide.view(np.float32)


def packed_arrays(arrays: dict[str, Any]) -> tuple[PackedInput, ...]:
    """Arrays as inline inputs; see `packed_array`. The loop is on the hot path."""
    out: list[PackedInput] = []
    for name, array in arrays.items():
        if type(array) is np.ndarray and type(name) is str:
            datatype = _DATATYPE_OF.get(array.dtype)
            if datatype is not None:
                size = array.nbytes
                if size <= SMALL_BYTES_MAX:
                    out.append((name, datatype, array.shape, 0, 0, 0, size, array.tobytes()))
                    continue
        out.append(packed_array(name, array))
    return tuple(out)


def packed_array(name: str, array: Any) -> PackedInput:
    """An array as inline input. Small ones are copied, larger ones referred to: leave them alone.

    Raises:
        RequestError: no datatype fits the array's dtype.
    """
    if type(name) is not str:
        raise unfit_text("an input's name", name)
    if type(array) is not np.ndarray:
        array = as_array(name, array)
        if isinstance(array, Bfloat16Bits):
            return _packed_special(name, array)
    datatype = _DATATYPE_OF.get(array.dtype)
    if datatype is None:
        return _packed_special(name, array)
    size = array.nbytes
    if size <= SMALL_BYTES_MAX:
        return (name, datatype, array.shape, INLINE, 0, 0, size, array.tobytes())
    return (name, datatype, array.shape, INLINE, 0, 0, size, bytes_of(array))


def as_array(name: str, given: Any) -> Array:
    """What a user gave for an input as an ndarray; lists and scalars take NumPy's default dtype."""
    if isinstance(given, np.ndarray):
        masks = sys.modules.get("numpy.ma")  # not loaded: there are no masked arrays
        if masks is not None and isinstance(given, masks.MaskedArray):
            raise RequestError(
                f"input {name!r}: a masked array, and there is no mask on the wire; give"
                " array.filled(value) instead"
            )
        return given
    if isinstance(given, str | bytes):
        return _object_array([given], ())
    try:
        if isinstance(given, list | tuple):
            # np.array(["a", b"\0"]) would lose trailing NULs: look before converting.
            flat = _flattened(given)
            texts = sum(isinstance(item, str | bytes) for item in flat)
            if texts and texts == len(flat):
                return _object_array(flat, np.shape(np.array(given, dtype=object)))
            if texts:  # NumPy would write the others out as text
                raise TypeError("strings and other things in one list")
        return np.asarray(given)
    except Exception as fault:  # of any library whose object was asked to become an array
        raise RequestError(f"input {name!r}: not an array: {fault}") from fault


def _flattened(given: Any) -> list[Any]:
    if not isinstance(given, list | tuple):
        return [given]
    return [leaf for item in given for leaf in _flattened(item)]


def _object_array(items: list[Any], shape: tuple[int, ...]) -> Array:
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out.reshape(shape)


def bytes_of(array: Array) -> memoryview:
    """The array's bytes in C order, without a copy when it is contiguous already."""
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return contiguous.reshape(-1).view(np.uint8).data


def _packed_special(name: str, array: Array) -> PackedInput:
    if isinstance(array, Bfloat16Bits) or array.dtype.name == _ML_DTYPES_NAME:
        data: Buffer = array.tobytes()
        return (name, "BF16", array.shape, INLINE, 0, 0, len(data), data)
    if array.dtype.kind in _TEXT_KINDS:
        data = pack_bytes(name, array)
        return (name, "BYTES", array.shape, INLINE, 0, 0, len(data), data)
    if array.dtype.kind in "biuf":  # big-endian, or a subclass of ndarray
        native = array.dtype.newbyteorder("=")
        if native in _DATATYPE_OF:
            return packed_array(name, np.asarray(array).astype(native))
    raise RequestError(
        f"input {name!r}: no datatype for NumPy's {array.dtype}; expected one of "
        f"{', '.join(NUMPY_NAME.values())}, object (bytes or str), or to_bfloat16(...)"
    )


def pack_bytes(name: str, array: Array) -> bytes:
    """BYTES elements in C order. Elements of object arrays are kept to the last byte; those of
    np.bytes_ and np.str_ arrays end at their trailing NULs, which NumPy itself drops.

    Raises:
        RequestError: an element is neither bytes nor str.
    """
    parts: list[bytes] = []
    for item in array.reshape(-1).tolist():
        if isinstance(item, str):
            try:
                item = item.encode()
            except UnicodeEncodeError as fault:
                raise RequestError(f"input {name!r}: {fault}; encode it to bytes first") from fault
        elif isinstance(item, bytearray | memoryview):
            item = bytes(item)
        elif not isinstance(item, bytes):
            raise RequestError(
                f"input {name!r}: expected bytes or str elements, got {type(item).__name__}"
                f" {item!r:.40}; convert it, or use an array of numbers"
            )
        parts.append(_length.pack(len(item)))
        parts.append(item)
    return b"".join(parts)


def unpack_bytes(data: Buffer, shape: tuple[int, ...]) -> npt.NDArray[np.object_]:
    """An object array of bytes. Raises ModelError when lengths and shape do not fit the data."""
    count = element_count(shape)
    view = memoryview(data)
    items: list[bytes] = []
    offset = 0
    for _ in range(count):
        start = offset + LENGTH_PREFIX_BYTES
        if start > len(view):
            break
        end = start + _length.unpack_from(view, offset)[0]
        if end > len(view):
            break
        items.append(bytes(view[start:end]))
        offset = end
    if len(items) != count or offset != len(view):
        raise ModelError(
            f"BYTES output of shape {list(shape)} does not hold {count} whole elements in"
            f" {len(view)} bytes",
            code=Code.MODEL_OUTPUT_INVALID,
        )
    out = np.empty(count, dtype=object)
    out[:] = items
    return out.reshape(shape)


def array_of(datatype: str, shape: tuple[int, ...], data: Buffer, *, copy: bool) -> Array:
    """An output as an array: BYTES as objects, BF16 as its bits; a copy, or a view of `data`.

    Raises ModelError when the bytes do not fit datatype and shape.
    """
    if datatype == "BYTES":
        return unpack_bytes(data, shape)
    dtype = dtype_of(datatype)
    if len(data) != element_count(shape) * ITEM_BYTES[datatype]:
        raise ModelError(
            f"output of {len(data)} bytes, expected {element_count(shape) * ITEM_BYTES[datatype]}"
            f" for {datatype} {list(shape)}",
            code=Code.MODEL_OUTPUT_INVALID,
        )
    array: Array = np.ndarray(shape, dtype, data)
    return array.copy() if copy else array


def dtype_of(datatype: str) -> np.dtype[Any]:
    """NumPy's dtype of a datatype other than BYTES. Raises ModelError for an unknown one."""
    dtype = _DTYPE_OF.get(datatype)
    if dtype is None:
        raise ModelError(
            f"output of unknown datatype {datatype!r}; is the server newer than this client?",
            code=Code.MODEL_OUTPUT_INVALID,
        )
    return dtype

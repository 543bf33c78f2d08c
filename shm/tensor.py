"""Tensors as NumPy arrays over bytes that lie elsewhere: no copy, or exactly one.

An array from here keeps its memory alive, and whatever says that the memory is lent (a Keeper).
Never decides where bytes go. BYTES have no array view: they are parsed from a private copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from naiad.protocol.datatypes import NUMPY_NAME, tensor_bytes
from naiad.protocol.errors import RequestError

Array = NDArray[Any]

_DTYPE: Final[dict[str, np.dtype[Any]]] = {
    **{datatype: np.dtype(name).newbyteorder("<") for datatype, name in NUMPY_NAME.items()},
    "BF16": np.dtype("<u2"),
}


class Keeper:
    """Says when nobody needs something any more: `released` is called when the keeper dies.

    Arrays and views made with `keep=` hold their keeper; one keeper may be shared by all outputs of
    an answer. `released` runs in whatever thread drops the last reference, also inside the garbage
    collector: it must only note the fact (append to a deque), never lock or block. What is given as
    `keep` is dropped after it ran.
    """

    __slots__ = ("_keep", "_released")

    def __init__(self, released: Callable[[], None], keep: object = None) -> None:
        self._released = released
        self._keep = keep

    def __del__(self) -> None:
        self._released()


class _Anchor(np.ndarray[Any, Any]):
    """What every view of an array finally refers to: it dies with the last of them.

    A keeper held by the array itself would be dropped while slices of it live on. NumPy stops
    shortening the chain of bases at an array of another class, so that the anchor stays in it.
    """

    keep: object


def array_over(
    buffer: memoryview | bytes | bytearray,
    datatype: str,
    shape: tuple[int, ...],
    *,
    keep: object = None,
) -> Array:
    """An array of `shape` over packed bytes, writable if they are; BF16 gives its bits as uint16.

    Args:
        buffer: exactly the tensor's bytes, at any alignment; kept alive by the array.
        keep: kept alive as well, until the array and all views of it are gone; see Keeper.

    Raises:
        RequestError: the buffer has another size than the tensor, or the datatype is BYTES.
    """
    dtype = _DTYPE.get(datatype)
    if dtype is None:
        raise RequestError(f"{datatype} has no array view: parse a copy of its bytes")
    expected = tensor_bytes(datatype, shape)
    size = memoryview(buffer).nbytes
    if expected != size:
        raise RequestError(
            f"{datatype} {list(shape)} takes {expected} bytes, got {size} bytes of memory"
        )
    return _anchored(buffer, dtype, shape, keep).view(np.ndarray)


def view_over(buffer: memoryview, keep: object) -> memoryview:
    """The same bytes as a view that keeps `keep` alive, as do all slices of it."""
    return _anchored(buffer, np.dtype(np.uint8), (buffer.nbytes,), keep).data


def _anchored(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], keep: object) -> _Anchor:
    anchor = _Anchor(shape, dtype, buffer)
    # NumPy looks through a memoryview: its base is the mmap itself, which it does not hold open.
    # Only while the memoryview lives is the mapping in use, and not closed under the array.
    anchor.keep = (memoryview(buffer), keep)
    return anchor


def copy_into(view: memoryview, array: Array) -> None:
    """The array's elements into `view`, packed, little-endian, in row-major order: one copy.

    Any memory layout of the array will do. Large copies run without the GIL.
    Raises RequestError when the view has another size than the array.
    """
    if view.nbytes != array.nbytes:
        raise RequestError(f"{array.nbytes} bytes do not fit {view.nbytes} bytes of memory")
    np.copyto(np.ndarray(array.shape, array.dtype.newbyteorder("<"), view), array)

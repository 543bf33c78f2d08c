"""Memory that a user has allocated or attached: inputs in it, places for outputs, arrays over it.

Owns what keeps that memory alive, and the checks of offsets and sizes. Where it comes from is
naiad.client.memory's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from naiad.client.requests import REGION, InferInput, OutputPlace
from naiad.client.tensors import Array
from naiad.protocol.datatypes import ITEM_BYTES, tensor_bytes
from naiad.protocol.errors import RequestError
from naiad.shm.tensor import Keeper, array_over, view_over


class ClientRegion:
    """Memory that inputs may be read from and outputs written to, as often as wanted.

    It is freed when this object, every array made from it and every request that uses it are gone.
    """

    def __init__(
        self, region_id: int, offset: int, view: memoryview, released: Callable[[], None]
    ) -> None:
        self.id = region_id
        self.size = len(view)
        self._offset = offset
        self._view = view
        self._keep: Keeper | None = Keeper(released)

    @property
    def view(self) -> memoryview:
        """All its bytes, writable."""
        return view_over(self._view, self._kept())

    def array(self, datatype: str, shape: tuple[int, ...], offset: int = 0) -> Array:
        """An array over its bytes, writable; not for BYTES."""
        size = size_of(datatype, shape)
        check_range(offset, size, self.size)
        return array_over(self._view[offset : offset + size], datatype, shape, keep=self._kept())

    def input(
        self, name: str, datatype: str, shape: tuple[int, ...], offset: int = 0, size: int = -1
    ) -> InferInput:
        """What lies at `offset`, as an input. `size` is needed for BYTES only."""
        if size == -1:
            size = size_of(datatype, shape)
        check_range(offset, size, self.size)
        return InferInput(
            name, datatype, shape, None, REGION, self.id, self._offset + offset, size, self._kept()
        )

    def place(self, offset: int = 0, size: int = -1) -> OutputPlace:
        """Where an output may be written; all of the region by default."""
        if size == -1 and type(offset) is int:
            size = self.size - offset
        check_range(offset, size, self.size)
        return OutputPlace(self.id, self._offset + offset, size, self._kept())

    def close(self) -> None:
        """No further use; the memory is freed when the last array and request are gone."""
        self._keep = None
        self._view = memoryview(b"")

    def _kept(self) -> Keeper:
        if self._keep is None:
            raise RequestError("this region is closed")
        return self._keep


def check_range(offset: Any, size: Any, limit: int) -> None:
    """Raises RequestError for what is no range of a region of `limit` bytes."""
    if type(offset) is not int or type(size) is not int:
        raise RequestError(
            f"expected offset and size as numbers of bytes, got {offset!r:.80} and {size!r:.80}"
        )
    if offset < 0 or size < 0 or offset + size > limit:
        raise RequestError(f"{size} bytes at offset {offset} do not fit a region of {limit} bytes")


def size_of(datatype: Any, shape: Any) -> int:
    """Bytes of a tensor. Raises RequestError for what is none, and for BYTES."""
    if datatype not in tuple(ITEM_BYTES):
        raise RequestError(
            f"unknown datatype {datatype!r:.80}; expected one of {sorted(ITEM_BYTES)}"
        )
    if not isinstance(shape, tuple | list) or not all(
        isinstance(dim, int) and dim >= 0 for dim in shape
    ):
        raise RequestError(f"expected a shape of integers from 0, got {shape!r:.80}")
    size = tensor_bytes(datatype, tuple(shape))
    if size is None:
        raise RequestError("BYTES have no size of their own: give it, or use another datatype")
    return size


def check_size(size: Any) -> None:
    """Raises RequestError for what cannot be the size of a region."""
    if type(size) is not int or not 0 < size < 2**63:
        raise RequestError(
            f"expected the size of a region as a number of bytes, from 1, got {size!r:.80}"
        )

"""Joining the tensors of a batch along dimension 0, and cutting results into requests again.

Works on bytes: rows of equal size one after the other need no array per request. Owns one buffer
per input, used again for every batch; what it returns is valid until the next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from naiad.protocol.datatypes import ITEM_BYTES, NUMPY_NAME, element_count

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array, InputTensor

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Per input. A larger batch is gathered in memory that is given back after the run."""


class GatherBuffers:
    """The buffers of one model's inputs; `rows_max` is its max_batch_size."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._kept: dict[str, Array] = {}

    def joined(self, tensors: Sequence[InputTensor], rows: int) -> Array:
        """The tensors (of one input, shapes equal but for dimension 0) as one array.

        BYTES give an object array of bytes, BF16 its bits as uint16.
        """
        first = tensors[0]
        if first.datatype == "BYTES":
            return np.concatenate([tensor.array() for tensor in tensors])
        tail = first.shape[1:]
        size = rows * element_count(tail) * ITEM_BYTES[first.datatype]
        buffer = self._buffer(first.name, size, size // rows if rows else 0)
        target = buffer.data
        begin = 0
        for tensor in tensors:
            end = begin + len(tensor.buffer)
            target[begin:end] = tensor.buffer
            begin = end
        dtype = NUMPY_NAME.get(first.datatype, "uint16")
        return buffer[:begin].view(dtype).reshape(rows, *tail)

    def _buffer(self, name: str, size: int, row_size: int) -> Array:
        kept = self._kept.get(name)
        if kept is None or kept.size < size:
            room = max(size, self._rows_max * row_size)
            if room > KEPT_BYTES_MAX:
                return np.empty(size, np.uint8)
            kept = self._kept[name] = np.empty(room, np.uint8)
        return kept


def packed_bytes(array: Array) -> memoryview:
    """The packed bytes of a contiguous array of a fixed-size dtype, without a copy."""
    return array.data.cast("B") if array.size else memoryview(b"")

"""The classification extension: an output's largest values instead of the output, for both skins.

As Triton has it, with one addition: NaN comes last.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from naiad.client.tensors import array_of
from naiad.gateway.calls import AnswerOutput
from naiad.gateway.known_classes import Classes
from naiad.protocol.datatypes import LENGTH_PREFIX_BYTES
from naiad.protocol.errors import RequestError

ELEMENTS_MAX: Final = 1_000_000
_UNSUPPORTED: Final = ("FP16", "BF16", "BYTES", "BOOL")


def classified(output: AnswerOutput, count: int, classes: Classes) -> AnswerOutput:
    """The `count` largest values of each item of the batch as BYTES "value:index[:label]".

    Raises RequestError for datatypes without an order, and too many elements.
    """
    if output.datatype in _UNSUPPORTED:
        raise RequestError(
            "class result not available for output due to unsupported type"
            f" '{output.datatype}': '{output.name}'"
        )
    assert output.data is not None, "classification and shared memory exclude each other"
    values = array_of(output.datatype, output.shape, output.data, copy=False)
    if values.size > ELEMENTS_MAX:
        raise RequestError(
            f"classification of output '{output.name}': {values.size} elements, expected at most"
            f" {ELEMENTS_MAX}"
        )
    is_batch = classes.batches and len(output.shape) > 0
    rows = (
        values.reshape(output.shape[0], -1) if is_batch and values.size else values.reshape(1, -1)
    )
    count = min(count, rows.shape[1])
    labels = classes.labels.get(output.name, ())
    parts: list[bytes] = []
    for row in rows:
        for index in _largest(row, count):
            label = labels[index] if index < len(labels) else ""
            text = f"{_number(row[index])}:{index}{':' if label else ''}{label}".encode()
            parts += (len(text).to_bytes(LENGTH_PREFIX_BYTES, "little"), text)
    shape = (output.shape[0], count) if is_batch else (count,)
    return AnswerOutput(output.name, "BYTES", shape, memoryview(b"".join(parts)))


def _largest(row: Any, count: int) -> list[int]:
    """Indexes of the largest values, descending; of equal ones the first first, NaN last."""
    # Sorting the reversed row and reading it backwards keeps equal values in their order, for
    # unsigned types too, which cannot be negated.
    reverse = np.argsort(row[::-1], kind="stable")[::-1]
    order = len(row) - 1 - reverse
    if row.dtype.kind == "f":
        is_nan = np.isnan(row[order])
        order = np.concatenate([order[~is_nan], order[is_nan]])
    found: list[int] = order[:count].tolist()
    return found


def _number(value: Any) -> str:
    return f"{float(value):.6f}" if isinstance(value, np.floating) else str(int(value))

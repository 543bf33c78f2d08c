"""The tensor datatypes: KServe v2 names, their config spelling, item sizes and NumPy names.

NumPy itself is not imported: its names are text here, so that the broker can stay without it.
"""

from __future__ import annotations

from typing import Final

ITEM_BYTES: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BF16": 2,
    "BYTES": 0,
}
"""Bytes per element; 0 for BYTES, whose elements are a uint32 (little-endian) length and bytes."""

NUMPY_NAME: Final[dict[str, str]] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""BYTES and BF16 have no NumPy twin: an object array of bytes, and the bits as uint16."""

CONFIG_NAME: Final[dict[str, str]] = {
    **{name: f"TYPE_{name}" for name in ITEM_BYTES if name != "BYTES"},
    "BYTES": "TYPE_STRING",
}
"""Wire name to the spelling of config.pbtxt (TYPE_STRING is the one that differs)."""

FROM_CONFIG: Final[dict[str, str]] = {config: wire for wire, config in CONFIG_NAME.items()}

LENGTH_PREFIX_BYTES: Final = 4


def element_count(shape: tuple[int, ...] | list[int]) -> int:
    """Product of the dimensions; 1 for a scalar, 0 if any dimension is 0."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def tensor_bytes(datatype: str, shape: tuple[int, ...] | list[int]) -> int | None:
    """Packed size of a tensor; None for BYTES, whose size does not follow from its shape."""
    item = ITEM_BYTES[datatype]
    return element_count(shape) * item if item else None

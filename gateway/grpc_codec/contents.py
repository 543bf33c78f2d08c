"""Typed contents, one protobuf field per kind of element, to packed little-endian bytes. Pure."""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import Any, Final

from naiad.protocol.datatypes import ITEM_BYTES
from naiad.protocol.errors import RequestError

_FIELD: Final = {
    "BOOL": ("bool_contents", "b"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}
"""Datatype to its field and its array type code. FP16 and BF16 travel only raw."""
_LENGTH: Final = Struct("<I")
"""Before each of BYTES."""


def packed_contents(contents: Any, name: str, datatype: str, model: str) -> bytes:
    """The elements of an InferTensorContents as raw contents would have them; none give b"".

    Their number is not compared with a shape: that is the broker's. Raises RequestError for a field
    that does not suit the datatype, and for an integer that does not fit (Triton cuts it).
    """
    wanted = field_of(datatype, name, model)
    code = _FIELD[datatype][1]
    for field, _ in contents.ListFields():
        if field.name != wanted:
            raise RequestError(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}':"
                f" {datatype} has its elements in {wanted}, got {field.name}"
            )
    elements = getattr(contents, wanted)
    if not code:
        return _strings(elements)
    try:
        numbers = array(code, elements)
    except OverflowError as fault:
        raise RequestError(
            f"input '{name}' of model '{model}': {wanted} has a number that is no {datatype}:"
            f" {fault}"
        ) from fault
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def field_of(datatype: str, name: str, model: str) -> str:
    """The field for elements of this datatype. Raises RequestError where there is none."""
    if datatype not in _FIELD:
        if datatype not in ITEM_BYTES:
            raise RequestError(f"invalid datatype '{datatype}' for input '{name}' of '{model}'")
        raise RequestError(
            f"input '{name}' of model '{model}': {datatype} has no typed contents; send it in"
            " raw_input_contents"
        )
    return _FIELD[datatype][0]


def _strings(elements: Any) -> bytes:
    contents: list[bytes] = elements[:]
    parts = [b""] * (2 * len(contents))
    parts[::2] = map(_LENGTH.pack, map(len, contents))
    parts[1::2] = contents
    return b"".join(parts)

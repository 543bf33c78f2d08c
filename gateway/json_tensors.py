"""Tensors as JSON arrays, both ways; the gateway's only use of NumPy besides classification.

Never rounds or wraps a value silently except FP32, which JSON's numbers do not fit. NaN, Infinity
and -Infinity are read and written as bare words, as Triton does.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from itertools import chain
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np

from naiad.client.tensors import array_of, dtype_of, unpack_bytes
from naiad.gateway.http_parameters import DEPTH_MAX, kind_of
from naiad.protocol.datatypes import ITEM_BYTES, LENGTH_PREFIX_BYTES, element_count
from naiad.protocol.errors import RequestError

SLICE_ITEMS: Final = 1024
"""Of an output that are written at once: 1 ms of numbers with all their digits."""
SLICE_BYTES: Final = 64 * 1024
"""Of strings that are written at once, likewise."""
JSON_OUTPUT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger tensor would take a minute and gigabytes as text: ask for binary data."""

_STRING_BYTES_PER_COST: Final = 64
_INTEGERS_PER_COST: Final = 4
_FLOATS: Final = ("FP32", "FP64")
_NOT_IN_JSON: Final = ("FP16", "BF16")
_WORDS: Final[dict[str, frozenset[type]]] = {
    "BOOL": frozenset({bool}),
    "BYTES": frozenset({str}),
    "FP32": frozenset({int, float}),
    "FP64": frozenset({int, float}),
}
_INTEGERS: Final = frozenset({int})
_NAMES: Final = {
    "BOOL": "true or false",
    "BYTES": "strings",
    "FP32": "numbers",
    "FP64": "numbers",
}


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: list[Any]) -> bytes:
    """The bytes of an input given as (nested) array in C order.

    Raises RequestError when elements have the wrong type, range or number.
    """
    check_readable(name, datatype)
    _, flat = flattened(name, data)
    check_count(name, shape, len(flat))
    return packed(name, datatype, flat)


def check_readable(name: str, datatype: str) -> None:
    """Raises RequestError for an input that JSON cannot bring."""
    if datatype in _NOT_IN_JSON:
        raise RequestError(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data"
            f" format for input {name}"
        )


def check_count(name: str, shape: tuple[int, ...], count: int) -> None:
    """Raises RequestError unless the shape has `count` elements."""
    expected = element_count(shape)
    if count != expected:
        raise RequestError(
            "Unable to parse 'data': Shape does not match true shape of 'data' field: input"
            f" '{name}' has shape {list(shape)}, which is {expected} elements, got {count}"
        )


def packed(name: str, datatype: str, flat: list[Any]) -> bytes:
    """The bytes of elements. Raises RequestError for one of the wrong type or range."""
    allowed = _WORDS.get(datatype, _INTEGERS)
    if not allowed.issuperset(map(type, flat)):
        wrong = next(one for one in flat if type(one) not in allowed)
        wanted = _NAMES.get(datatype, "integers")
        raise RequestError(
            f"Unable to parse 'data': input '{name}' is {datatype}, expected {wanted}, got"
            f" {kind_of(wrong)}: {wrong!r:.40}"
        )
    if datatype == "BYTES":
        return _bytes_of_texts(name, flat)
    if datatype not in _WORDS:
        _check_range(name, datatype, flat)
    try:
        with np.errstate(over="ignore"):  # FP32 of a larger number is infinite, as in C
            return np.asarray(flat, dtype=dtype_of(datatype)).tobytes()
    except OverflowError:
        raise RequestError(
            f"Unable to parse 'data': input '{name}' has an integer too large for {datatype}"
        ) from None


def flattened(name: str, data: list[Any]) -> tuple[int, list[Any]]:
    """The leaves of nested arrays, which may be nested in any way, but evenly, and how deeply."""
    for depth in range(DEPTH_MAX):
        kinds = set(map(type, data))
        if list not in kinds:
            return depth, data
        if len(kinds) > 1:
            raise nested_unevenly(name)
        data = list(chain.from_iterable(data))
    raise RequestError(
        f"Unable to parse 'data': input '{name}' is nested too deeply, expected at most"
        f" {DEPTH_MAX} levels"
    )


def nested_unevenly(name: str) -> RequestError:
    return RequestError(
        f"Unable to parse 'data': input '{name}' mixes arrays and values at one level"
    )


def _check_range(name: str, datatype: str, flat: list[int]) -> None:
    if not flat:
        return
    limits = np.iinfo(dtype_of(datatype))
    least, most = min(flat), max(flat)
    if least < limits.min or most > limits.max:
        wrong = least if least < limits.min else most
        raise RequestError(
            f"Unable to parse 'data': input '{name}' is {datatype}, expected {limits.min} to"
            f" {limits.max}, got {wrong!s:.40}"
        )


def _bytes_of_texts(name: str, flat: list[str]) -> bytes:
    parts: list[bytes] = []
    try:
        for text in flat:
            item = text.encode()
            parts += (len(item).to_bytes(LENGTH_PREFIX_BYTES, "little"), item)
    except UnicodeEncodeError as fault:
        raise _no_unicode(name, fault) from None
    return b"".join(parts)


def text_bytes(name: str, text: str) -> bytes:
    """Those of a string, or of a part. Raises RequestError for what is not Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as fault:
        raise _no_unicode(name, fault) from None


def _no_unicode(name: str, fault: UnicodeEncodeError) -> RequestError:
    return RequestError(
        f"Unable to parse 'data': input '{name}' has a string that is not Unicode: {fault.reason}"
    )


def to_json(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> bytes:
    """An output as flat JSON array.

    Raises RequestError when JSON cannot hold it: FP16, BF16, strings that are not UTF-8, too large.
    """
    check_writable(name, datatype, len(data))
    return _text(name, datatype, shape, data)


def check_writable(name: str, datatype: str, size: int) -> None:
    """Raises RequestError for an output that JSON cannot bring."""
    if datatype in _NOT_IN_JSON:
        raise RequestError(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format"
            f" for output '{name}'"
        )
    if size > JSON_OUTPUT_BYTES_MAX:
        raise RequestError(
            f"output '{name}' has {size} bytes, expected at most {JSON_OUTPUT_BYTES_MAX} as"
            " JSON. Please use the binary data format"
        )


def text_cost(datatype: str, shape: tuple[int, ...], size: int) -> int:
    """What writing `size` bytes takes, in numbers with all their digits; at most `size`."""
    if datatype == "BYTES":
        return element_count(shape) + size // _STRING_BYTES_PER_COST
    items = size // ITEM_BYTES[datatype]
    return items if datatype in _FLOATS else items // _INTEGERS_PER_COST


def text_slices(
    name: str, datatype: str, shape: tuple[int, ...], data: memoryview
) -> Iterator[bytes]:
    """The same as `to_json` in parts, each of which takes some milliseconds at most."""
    check_writable(name, datatype, len(data))
    before = b"["
    for start, end, count in _parts(datatype, data):
        if not count:
            yield before + b'"'
            yield from _string_pieces(name, data[start:end])
            yield b'"'
            before = b","
            continue
        yield before + _text(name, datatype, (count,), data[start:end])[1:-1]
        before = b","
    yield b"]" if before == b"," else b"[]"


def _parts(datatype: str, data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Elements that are written together: from, to, their number; 0 for a long string alone."""
    if datatype != "BYTES":
        item_bytes = ITEM_BYTES[datatype]
        size = SLICE_ITEMS * item_bytes
        for start in range(0, len(data), size):
            end = min(start + size, len(data))
            yield start, end, (end - start) // item_bytes
        return
    start = end = count = 0
    while end < len(data):
        length = int.from_bytes(data[end : end + LENGTH_PREFIX_BYTES], "little")
        after = end + LENGTH_PREFIX_BYTES + length
        if length > SLICE_BYTES and after <= len(data):
            if count:
                yield start, end, count
            yield end + LENGTH_PREFIX_BYTES, after, 0
            start, end, count = after, after, 0
            continue
        end = min(after, len(data))
        count += 1
        if count == SLICE_ITEMS or end - start >= SLICE_BYTES or end == len(data):
            yield start, end, count
            start, count = end, 0


def _string_pieces(name: str, data: memoryview) -> Iterator[bytes]:
    """The inside of a string."""
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(data), SLICE_BYTES):
        end = start + SLICE_BYTES
        try:
            text = decoder.decode(data[start:end], end >= len(data))
        except UnicodeDecodeError as fault:
            raise _no_utf8(name, fault) from None
        yield encode_basestring(text)[1:-1].encode()


def _no_utf8(name: str, fault: UnicodeDecodeError) -> RequestError:
    return RequestError(
        f"output '{name}' is not UTF-8 ({fault.reason}), and JSON cannot hold it. Please"
        " use the binary data format"
    )


def _text(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> bytes:
    if datatype == "BYTES":
        try:
            items = [item.decode() for item in unpack_bytes(data, shape).reshape(-1)]
        except UnicodeDecodeError as fault:
            raise _no_utf8(name, fault) from None
    else:
        items = array_of(datatype, shape, data, copy=False).reshape(-1).tolist()
    return json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()

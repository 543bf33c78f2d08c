"""Fields of KServe's JSON, checked: each returns what it found or raises RequestError. Pure.

Triton answers most of these with 500 and its JSON library's text; here they are 400 with the same
beginning, as KServe asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from naiad.gateway import json_words
from naiad.gateway.calls import CallOutput, RegionPart
from naiad.protocol.checks import INT64_MAX, TIMEOUT_US_MAX, UINT64_MAX
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import Parameters, Sequence

CONTAINERS_MAX: Final = 1 << 20
"""Arrays and objects in one JSON text: each takes 20 times its size when it is parsed."""
DEPTH_MAX: Final = 100
"""Of the arrays in `data`. Deeper nesting elsewhere meets Python's own limit."""
RESERVED_PREFIX: Final = "triton_"

Json = dict[str, Any]

_REGION_KEYS: Final = (
    "shared_memory_region",
    "shared_memory_offset",
    "shared_memory_byte_size",
)


def parsed_object(text: bytes, position: Callable[[int], int] = int) -> Json:
    """A JSON object. Raises RequestError for what is not one. `position`: see `parsed`."""
    containers = text.count(b"[") + text.count(b"{")
    if containers > CONTAINERS_MAX:
        raise RequestError(
            f"failed to parse the request JSON buffer: {containers} arrays and objects, expected at"
            f" most {CONTAINERS_MAX}; send the data as one flat array, or as binary data"
        )
    found = parsed(text, position)
    if type(found) is not dict:
        raise RequestError(
            f"failed to parse the request JSON buffer: expected an object, got {kind_of(found)}"
        )
    if b"\\ud" in text or b"\\uD" in text:
        check_unicode(found)
    return found


def parsed(text: bytes, position: Callable[[int], int] = int) -> Any:
    """A JSON value. Raises RequestError for what is none.

    `position`: where something is for the client, of where it is in `text`.
    """
    try:
        return json_words.loads(text.decode())
    except RecursionError:
        raise nested_too_deeply() from None
    except ValueError as fault:
        raise no_json(fault, position) from None


def no_json(fault: ValueError, position: Callable[[int], int]) -> RequestError:
    """What json, or the decoding of its text, has found. `position`: see `parsed`."""
    reason = getattr(fault, "msg", None) or getattr(fault, "reason", None) or str(fault)
    where = position(getattr(fault, "pos", getattr(fault, "start", 0)))
    return RequestError(f"failed to parse the request JSON buffer: {reason} at {where}")


def nested_too_deeply() -> RequestError:
    return RequestError(
        "failed to parse the request JSON buffer: it is nested too deeply, expected at most"
        f" {DEPTH_MAX} levels"
    )


def may_have_halves(text: str) -> bool:
    """Whether `check_unicode` may find something in what this text means."""
    return "\\ud" in text or "\\uD" in text


def check_unicode(found: Any) -> None:
    """Half of a surrogate pair makes a string that nobody can send on."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise RequestError(
            "failed to parse the request JSON buffer: a string is not Unicode (\\uD800 to \\uDFFF"
            " come in pairs)"
        ) from None


def kind_of(value: Any) -> str:
    """JSON's word for the type of a parsed value."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    names |= {int: "an integer", float: "a number"}
    return names.get(type(value), "null")


def text_of(found: Json, key: str) -> str:
    value = found.get(key)
    if type(value) is not str:
        raise RequestError(f"Unable to parse '{key}': {_expected('string', found, key)}")
    return value


def array_of(found: Json, key: str) -> list[Any]:
    value = found.get(key)
    if type(value) is not list:
        raise RequestError(f"Unable to parse '{key}': {_expected('array', found, key)}")
    return value


def object_of(found: Json, key: str) -> Json:
    """The object `key`, empty when it is absent."""
    value = found.get(key)
    if value is None and key not in found:
        return {}
    if type(value) is not dict:
        raise RequestError(f"Unable to parse '{key}': {_expected('object', found, key)}")
    return value


def uint_of(found: Json, key: str, default: int = 0, most: int = UINT64_MAX) -> int:
    value = found.get(key, default)
    if type(value) is not int or not 0 <= value <= most:
        said = _expected("unsigned-integer", found, key)
        if type(value) is int:
            said += f" {value!r:.40}"
        raise RequestError(f"Unable to parse '{key}': {said}, expected 0 to {most}")
    return value


def flag_of(found: Json, key: str, default: bool = False) -> bool:
    value = found.get(key, default)
    if type(value) is not bool:
        raise RequestError(f"Unable to parse '{key}': {_expected('boolean', found, key)}")
    return value


def shape_of(found: Json) -> tuple[int, ...]:
    shape = array_of(found, "shape")
    for dim in shape:
        if type(dim) is not int or not 0 <= dim < 1 << 63:
            raise RequestError(
                "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as"
                f" unsigned-integer: {dim!r:.40} (input '{found.get('name', ''):.80}')"
            )
    return tuple(shape)


def region_of(parameters: Json) -> RegionPart | None:
    """The three shared memory parameters of a tensor, or None."""
    if "shared_memory_region" not in parameters:
        return None
    name = text_of(parameters, "shared_memory_region")
    if "shared_memory_byte_size" not in parameters:
        raise RequestError(
            f"'shared_memory_byte_size' is missing beside 'shared_memory_region' ('{name:.80}')"
        )
    return RegionPart(
        name,
        uint_of(parameters, "shared_memory_offset"),
        uint_of(parameters, "shared_memory_byte_size"),
    )


def output_of(found: Any) -> CallOutput:
    """One entry of `outputs`."""
    if type(found) is not dict:
        raise RequestError(f"Unable to parse 'outputs': expected objects, got {kind_of(found)}")
    name = text_of(found, "name")
    parameters = object_of(found, "parameters")
    classes = uint_of(parameters, "classification")
    is_binary = flag_of(parameters, "binary_data")
    region = region_of(parameters)
    if region is not None and (classes or is_binary):
        other = "classification" if classes else "binary_data"
        raise RequestError(
            f"Output can't set both 'shared_memory_region' and '{other}': '{name:.80}'"
        )
    return CallOutput(name, classes, region, is_binary)


class RequestParameters:
    """What stands in a request's `parameters`, sorted out."""

    __slots__ = ("is_binary", "others", "priority", "sequence", "timeout_us")

    def __init__(self, found: Json) -> None:
        self.others: Parameters = {}
        self.priority = uint_of(found, "priority")
        self.timeout_us = uint_of(found, "timeout", most=TIMEOUT_US_MAX)
        self.is_binary = flag_of(found, "binary_data_output")
        self.sequence = _sequence(found)
        for key, value in found.items():
            if key in _KNOWN:
                continue
            if key.startswith(RESERVED_PREFIX):
                raise RequestError(
                    f"parameter keys starting with '{RESERVED_PREFIX}' are reserved for Triton"
                    f" usage and should not be specified: '{key:.80}'"
                )
            if type(value) not in (str, int, bool, float):
                raise RequestError(
                    f"parameter '{key:.80}' has invalid type. It should be either 'int', 'bool',"
                    f" 'string', or 'double'; got {kind_of(value)}"
                )
            self.others[key] = _number(value) if type(value) is int else value


_KNOWN: Final = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "binary_data_output",
    }
)


def _number(value: int) -> int | float:
    """One beyond 64 bits is a double, as for Triton's parser."""
    if -INT64_MAX - 1 <= value <= INT64_MAX:
        return value
    try:
        return float(value)
    except OverflowError:  # refused with all that cannot travel
        return value


def _sequence(found: Json) -> Sequence | None:
    """Ids 0 and "" mean none."""
    ident = found.get("sequence_id", 0)
    if type(ident) is not str:
        ident = uint_of(found, "sequence_id")
    start = flag_of(found, "sequence_start")
    end = flag_of(found, "sequence_end")
    return Sequence(ident, start, end) if ident else None


def _expected(what: str, found: Json, key: str) -> str:
    """In the words of Triton's JSON library."""
    if key not in found:
        return f"attempt to access non-existing object member '{key}'"
    return f"attempt to access JSON non-{what} as {what}: got {kind_of(found[key])}"

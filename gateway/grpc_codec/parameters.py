"""Typed parameters: of requests, tensors and answers. Pure.

Which protobuf field may hold which parameter is Triton's rule, as are the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from naiad.gateway.calls import RegionPart
from naiad.protocol import messages as m
from naiad.protocol.checks import TIMEOUT_US_MAX, UINT64_MAX
from naiad.protocol.errors import RequestError

RESERVED_PREFIX: Final = "triton_"
EMPTY_FINAL: Final = "triton_enable_empty_final_response"
"""A wish for a last message without outputs, for models that say later that they are done. A model
that answers once says so with its answer, and there is nothing to send after it, as in Triton."""
FINAL: Final = "triton_final_response"

_BOOL: Final = "bool_param"
_INT64: Final = "int64_param"
_UINT64: Final = "uint64_param"
_STRING: Final = "string_param"
_UINT64_COUNT: Final = 2**64


class RequestParameters(NamedTuple):
    """What a request's parameters say to the server, and `others` for its model."""

    priority: int = 0
    timeout_us: int = 0
    sequence: m.Sequence | None = None
    others: m.Parameters = {}  # noqa: RUF012 - never written to


NONE: Final = RequestParameters()


def request_parameters(given: Mapping[str, Any]) -> RequestParameters:
    """Those of a ModelInferRequest. Raises RequestError for a wrong type or a reserved name."""
    count = len(given)
    if count > m.PARAMETERS_MAX + len(_KNOWN):
        raise RequestError(f"{count} parameters, expected at most {m.PARAMETERS_MAX}")
    others: m.Parameters = {}
    known: dict[str, Any] = {}
    for name, value in given.items():
        if name in _KNOWN:
            known[name] = _value(name, value, _KNOWN[name])
        elif name.startswith(RESERVED_PREFIX):
            raise RequestError(
                f"parameter keys starting with '{RESERVED_PREFIX}' are reserved for Triton usage."
                f" Only the following keys starting with '{RESERVED_PREFIX}' are allowed:"
                f" {EMPTY_FINAL}; got '{name:.80}'"
            )
        else:
            others[name] = _value(name, value, ())
    for name, most in _MOST.items():
        if not 0 <= known.get(name, 0) <= most:
            raise RequestError(
                f"invalid value for '{name}' parameter, expected 0 to {most}, got {known[name]}"
            )
    ident = known.get("sequence_id", 0)
    sequence = None
    if ident:
        # As Triton: the sign of an int64 is a bit of the id.
        ident = ident if isinstance(ident, str) else ident % _UINT64_COUNT
        start, end = known.get("sequence_start", False), known.get("sequence_end", False)
        sequence = m.Sequence(ident, start, end)
    return RequestParameters(
        known.get("priority", 0),
        known.get("timeout", 0),
        sequence,
        others,
    )


_KNOWN: Final = {
    "sequence_id": (_INT64, _STRING),
    "sequence_start": (_BOOL,),
    "sequence_end": (_BOOL,),
    "priority": (_INT64, _UINT64),
    "timeout": (_INT64,),
    EMPTY_FINAL: (_BOOL,),
}
_MOST: Final = {"priority": UINT64_MAX, "timeout": TIMEOUT_US_MAX}


def region_part(given: Mapping[str, Any]) -> RegionPart | None:
    """Where a tensor lies in shared memory, or None."""
    if "shared_memory_region" not in given:
        return None
    name = _value("shared_memory_region", given["shared_memory_region"], (_STRING,))
    if "shared_memory_byte_size" not in given:
        raise RequestError(
            f"'shared_memory_byte_size' is missing beside 'shared_memory_region' ('{name:.80}')"
        )
    return RegionPart(
        name, _size("shared_memory_offset", given), _size("shared_memory_byte_size", given)
    )


def class_count(given: Mapping[str, Any]) -> int:
    """Of how many classes a requested output shall consist; 0: of its tensor."""
    if "classification" not in given:
        return 0
    count: int = _value("classification", given["classification"], (_INT64,))
    if count <= 0:
        raise RequestError(
            "invalid value for 'classification' parameter, expected an int64_param of at least 1,"
            f" got {count}"
        )
    return count


def set_parameters(target: Any, values: m.Parameters) -> None:
    """Write an answer's parameters into a map<string, InferParameter>."""
    for name, value in values.items():
        parameter = target[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = value


def _size(name: str, given: Mapping[str, Any]) -> int:
    if name not in given:
        return 0
    size: int = _value(name, given[name], (_INT64,))
    if size < 0:
        raise RequestError(f"'{name}': expected a number of at least 0, got {size}")
    return size


def _value(name: str, parameter: Any, allowed: tuple[str, ...]) -> Any:
    """The value of an InferParameter of one of the allowed fields, or of any if none are given."""
    chosen = parameter.WhichOneof("parameter_choice")
    if chosen is None or (allowed and chosen not in allowed):
        expected = " or ".join(allowed) or "one of its fields"
        raise RequestError(
            f"invalid value type for '{name}' parameter, expected {expected}"
            f", got {chosen or 'no value'}"
        )
    return getattr(parameter, chosen)

"""Checks of single fields of a message: each returns its argument or raises ProtocolError. Pure.

The codec builds its tables from these; the hot messages repeat them inline, because a call per
field costs more than the check it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from naiad.protocol import messages as m
from naiad.protocol.errors import ProtocolError

ARRAY_ITEMS_MAX: Final = 4096
STRING_BYTES_MAX: Final = 32 * 1024
NAME_BYTES_MAX: Final = 1024
RANK_MAX: Final = 32
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
TIMEOUT_US_MAX: Final = 10**6 * 3600 * 24 * 365

Check = Callable[[Any], Any]

_make: Final = tuple.__new__


def mismatch(expected: str, got: object) -> ProtocolError:
    shown = repr(got)
    return ProtocolError(f"expected {expected}, got {shown[:80]}")


def uint(value: Any) -> int:
    if type(value) is not int or value < 0 or value > UINT64_MAX:
        raise mismatch("an unsigned 64-bit integer", value)
    return value


def int64(value: Any) -> int:
    if type(value) is not int or value < -INT64_MAX or value > INT64_MAX:
        raise mismatch("a 64-bit integer", value)
    return value


def text(value: Any) -> str:
    if type(value) is not str:
        raise mismatch("a string", value)
    return value


def short_text(value: Any) -> str:
    if type(value) is not str or len(value) > NAME_BYTES_MAX:
        raise mismatch(f"a string of at most {NAME_BYTES_MAX} characters", value)
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise mismatch("a boolean", value)
    return value


def secret(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != m.SECRET_BYTES:
        raise mismatch(f"{m.SECRET_BYTES} random bytes", value)
    return value


def items_of(check: Check, limit: int = ARRAY_ITEMS_MAX) -> Check:
    def checked(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) > limit:
            raise mismatch(f"an array of at most {limit} items", value)
        return tuple([check(item) for item in value])

    return checked


def record_of(cls: type[Any], *checks: Check) -> Check:
    def checked(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(checks):
            raise mismatch(f"{cls.__name__} of {len(checks)} fields", value)
        return _make(cls, [check(item) for check, item in zip(checks, value, strict=True)])

    return checked


def pair_of(first: Check, second: Check) -> Check:
    def checked(value: Any) -> tuple[Any, Any]:
        if type(value) is not tuple or len(value) != 2:
            raise mismatch("a pair", value)
        return (first(value[0]), second(value[1]))

    return checked


def error_or_none(value: Any) -> tuple[str, str, bool] | None:
    if value is None:
        return None
    if (
        type(value) is not tuple
        or len(value) != 3
        or type(value[0]) is not str
        or type(value[1]) is not str
        or type(value[2]) is not bool
    ):
        raise mismatch("null or [code, message, retryable]", value)
    return value


def parameters_map(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise mismatch("a map of parameters", value)
    for key, item in value.items():
        if type(key) is not str:
            raise mismatch("parameter names that are strings", key)
        kind = type(item)
        if kind is not str and kind is not int and kind is not bool and kind is not float:
            raise mismatch(f"parameter {key!r} to be a string, integer, float or boolean", item)
    return value


def sequence_or_none(value: Any) -> m.Sequence | None:
    if value is None:
        return None
    if type(value) is not tuple or len(value) != 3:
        raise mismatch("null or [sequence id, start, end]", value)
    ident, start, end = value
    if type(ident) is str:
        short_text(ident)
    else:
        uint(ident)
    return m.Sequence(ident, flag(start), flag(end))

"""The fields of a request as a user gave them, whatever they are, into what `checked` takes. Pure.

Owns the checks of types and ranges: a wrong field is refused here, because on the wire it would
spoil the whole message that it shares with others. Never looks into a buffer.
"""

from __future__ import annotations

from typing import Any, Final

from naiad.client.requests import (
    INLINE,
    INT64_MAX,
    REGION,
    SMALL_BYTES_MAX,
    InferInput,
    PackedInput,
    Tail,
    check_input,
)
from naiad.client.texts import fits_text, unfit_text, utf8_bytes
from naiad.protocol import messages as m
from naiad.protocol.checks import ARRAY_ITEMS_MAX, RANK_MAX, STRING_BYTES_MAX, TIMEOUT_US_MAX
from naiad.protocol.datatypes import ITEM_BYTES
from naiad.protocol.errors import RequestError

_PRIORITY_MAX: Final = 2**64 - 1


def packed(given: Any) -> PackedInput:
    """An InferInput, of whatever values, as the session takes it.

    Raises:
        RequestError: a field has the wrong type or size.
    """
    if not isinstance(given, InferInput):
        raise RequestError(
            f"expected a list of InferInput, got one with {type(given).__name__}; arrays are given"
            " by name: {'INPUT0': array}"
        )
    fields: Any = given  # their types are only promised
    name, datatype, shape, data, place, region, offset, size, _ = fields
    check_input(name, 0)
    if type(datatype) is not str or datatype not in ITEM_BYTES:
        raise RequestError(
            f"input {name!r}: unknown datatype {datatype!r}; expected one of {sorted(ITEM_BYTES)}"
        )
    try:
        shape = tuple(shape)
    except TypeError:
        raise RequestError(
            f"input {name!r}: expected a shape as a tuple of integers, got {shape!r:.80}"
        ) from None
    dims = (type(dim) is int and -INT64_MAX <= dim <= INT64_MAX for dim in shape)
    if len(shape) > RANK_MAX or not all(dims):
        raise RequestError(
            f"input {name!r}: expected a shape of at most {RANK_MAX} integers, got {shape!r:.80}"
        )
    if place not in (INLINE, REGION):
        raise RequestError(f"input {name!r}: expected Place.INLINE or Place.REGION, got {place!r}")
    if place == REGION:
        for number in (region, offset, size):
            if type(number) is not int or not 0 <= number <= INT64_MAX:
                raise RequestError(
                    f"input {name!r}: expected region, offset and size as integers of 0 to 2**63-1,"
                    f" got {region!r:.80}, {offset!r:.80} and {size!r:.80}"
                )
        return (name, datatype, shape, REGION, region, offset, size, None)
    if data is None:
        raise RequestError(f"input {name!r}: expected bytes, got none")
    if not isinstance(data, bytes):
        try:
            data = memoryview(data).cast("B")
        except TypeError as fault:
            raise RequestError(
                f"input {name!r}: expected contiguous bytes, got {type(data).__name__}: {fault}"
            ) from fault
        if len(data) <= SMALL_BYTES_MAX:
            data = bytes(data)
    return (name, datatype, shape, INLINE, 0, 0, len(data), data)


def tail(
    outputs: tuple[m.OutputRequest, ...],
    priority: Any,
    timeout_us: Any,
    sequence: Any,
    accounting_key: Any,
    fairness_key: Any,
    traceparent: Any,
    parameters: Any,
) -> Tail:
    """The checked last fields of a request; a wrong one must not spoil its whole message.

    They come as a user gave them.

    Raises:
        RequestError: a field has the wrong type or range.
    """
    if type(priority) is not int or not 0 <= priority <= _PRIORITY_MAX:
        raise RequestError(f"expected a priority of 0 to 2**64-1, got {priority!r:.80}")
    if type(timeout_us) is not int or not 0 <= timeout_us <= TIMEOUT_US_MAX:
        raise RequestError(
            "expected timeout_us as a whole number of microseconds, from 0 (none) to"
            f" {TIMEOUT_US_MAX} (a year), got {timeout_us!r:.80}"
        )
    for what, text in (
        ("accounting_key", accounting_key),
        ("fairness_key", fairness_key),
        ("traceparent", traceparent),
    ):
        if not fits_text(text):
            raise unfit_text(what, text)
    if len(outputs) > ARRAY_ITEMS_MAX:
        raise RequestError(f"{len(outputs)} outputs, expected at most {ARRAY_ITEMS_MAX}")
    for output in outputs:
        name: object = output[0]
        if not fits_text(name):
            raise unfit_text("an output's name", name)
    return (
        outputs,
        priority,
        timeout_us,
        None if sequence is None else _checked_sequence(sequence),
        accounting_key,
        fairness_key,
        traceparent,
        check_parameters(parameters),
    )


def _checked_sequence(sequence: Any) -> m.Sequence:
    if isinstance(sequence, tuple | list) and len(sequence) == 3:
        ident, start, end = sequence
        fits = fits_text(ident) or (type(ident) is int and 0 <= ident <= _PRIORITY_MAX)
        if fits and type(start) is bool and type(end) is bool:
            return m.Sequence(ident, start, end)
    raise RequestError(
        "expected a sequence (id, start, end): a string or a number of 0 to 2**64-1, and two"
        f" booleans, got {sequence!r:.80}"
    )


def check_parameters(parameters: Any) -> m.Parameters:
    """The same parameters, or RequestError when they cannot travel."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(
            f"expected parameters as a dict of values by name, got {parameters!r:.80}"
        )
    if len(parameters) > m.PARAMETERS_MAX:
        raise RequestError(f"{len(parameters)} parameters, expected at most {m.PARAMETERS_MAX}")
    for name, value in parameters.items():
        kind = type(value)
        if not fits_text(name):
            raise unfit_text("a parameter's name", name)
        if kind is int:
            fits = -INT64_MAX - 1 <= value <= INT64_MAX
        elif kind is str:
            fits = fits_text(value, STRING_BYTES_MAX) and utf8_bytes(value) <= STRING_BYTES_MAX
        else:
            fits = kind is bool or kind is float
        if not fits:
            raise RequestError(
                f"parameter {name!r}: expected a string of at most {STRING_BYTES_MAX} bytes, a"
                f" 64-bit integer (-2**63 to 2**63-1), a float or a boolean, got {value!r:.80}"
            )
    return parameters

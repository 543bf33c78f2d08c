"""What a request is made of below NumPy, checked once. Pure.

Owns InferInput, OutputPlace and Prepared: everything of a request but its id and its fate. A wrong
field is refused here, because on the wire it would spoil the whole message that it shares with
others. Never looks into a buffer.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from naiad.protocol import messages as m
from naiad.protocol.checks import (
    ARRAY_ITEMS_MAX,
    NAME_BYTES_MAX,
    RANK_MAX,
    STRING_BYTES_MAX,
    TIMEOUT_US_MAX,
)
from naiad.protocol.codec import encode
from naiad.protocol.datatypes import ITEM_BYTES
from naiad.protocol.errors import RequestError

SMALL_BYTES_MAX: Final = 16 * 1024
"""Inputs up to this size are packed into one payload frame per message."""

_REQUEST_BYTES: Final = 96
"""Most that a request's numbers, nulls and array heads take in a header."""
_TENSOR_BYTES: Final = 64
_DIMENSION_BYTES: Final = 9
_CHARACTER_BYTES: Final = 4
_PRIORITY_MAX: Final = 2**64 - 1
_INT64_MAX: Final = 2**63 - 1

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes; a memoryview has format "B" and one dimension, so that len() is its size."""

INLINE: Final = int(m.Place.INLINE)
REGION: Final = int(m.Place.REGION)
LEASE: Final = int(m.Place.LEASE)


class InferInput(NamedTuple):
    """One input as bytes, in C order.

    `data` is not copied when larger than SMALL_BYTES_MAX: leave it unchanged until the answer.
    With `place` Place.REGION, `size` bytes at `offset` of the session's region `region` are meant
    and `data` is None.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer | None
    place: int = INLINE
    region: int = 0
    offset: int = 0
    size: int = 0
    keep: Any = None
    """Kept alive until no process reads the input any more."""


class OutputPlace(NamedTuple):
    """Where an output may be written: `size` bytes at `offset` of a region of this client.

    A result larger than `size` is an error of that request, as in Triton. `keep` lives until no
    process writes there any more; see `ClientRegion.place`.
    """

    region: int
    offset: int
    size: int
    keep: Any = None


PackedInput = tuple[str, str, tuple[int, ...], int, int, int, int, Buffer | None]
"""(name, datatype, shape, place, region, offset, size, data): an InferInput ready to send."""

Head = tuple[str, int, str]
"""(model, version, label) of an InferRequest."""

Tail = tuple[tuple[m.OutputRequest, ...], int, int, m.Sequence | None, str, str, str, m.Parameters]
"""The last fields of an InferRequest: outputs, priority, timeout_us, ..., parameters."""

PLAIN: Final[Tail] = ((), 0, 0, None, "", "", "", {})


class Prepared:
    """The parts of a request, as `checked` makes them. May be submitted any number of times.

    `header_bytes` is what it takes in a header at most, `inline_bytes` the size of its inline
    inputs. `memory` is kept alive with every request made of it, until no process uses its regions.
    """

    __slots__ = ("head", "header_bytes", "inline_bytes", "inputs", "memory", "tail")

    def __init__(
        self,
        head: Head,
        inputs: tuple[PackedInput, ...],
        tail: Tail,
        memory: object,
        inline_bytes: int,
        header_bytes: int,
    ) -> None:
        self.head = head
        self.inputs = inputs
        self.tail = tail
        self.memory = memory
        self.inline_bytes = inline_bytes
        self.header_bytes = header_bytes

    def with_timeout(self, timeout_us: int) -> Prepared:
        """The same with another timeout."""
        tail = self.tail
        changed = (*tail[:2], timeout_us, *tail[3:])
        return checked(self.head, self.inputs, changed, self.memory)

    def __repr__(self) -> str:
        names = ", ".join(item[0] for item in self.inputs)
        return f"<request for {self.head[0]!r} with {names}>"


def fits_text(given: object, chars_max: int = NAME_BYTES_MAX) -> bool:
    """Whether the server could read it: a string, not too long, of characters that UTF-8 has."""
    return (
        type(given) is str
        and len(given) <= chars_max
        and (given.isascii() or len(given.encode("utf-8", "ignore")) == _utf8_bytes(given))
    )


def unfit_text(what: str, given: object) -> RequestError:
    """The error for what does not fit (see `fits_text`)."""
    if isinstance(given, str) and len(given) > NAME_BYTES_MAX:
        came = f"one of {len(given)}: {given[:40]!r}..."
    else:
        came = f"{given!r:.80}"
    return RequestError(
        f"expected {what} as a string of at most {NAME_BYTES_MAX} characters that UTF-8 has,"
        f" got {came}"
    )


def _utf8_bytes(text: str) -> int:
    """With three bytes for each lone surrogate, which UTF-8 itself has not."""
    return len(text.encode("utf-8", "surrogatepass"))


def checked(
    head: Head, inputs: tuple[PackedInput, ...], tail: Tail = PLAIN, memory: object = None
) -> Prepared:
    """The parts of a request. Raises RequestError for what can never be sent."""
    model, version, label = head
    if not -1 <= version <= _INT64_MAX or not (
        (model.isascii() and label.isascii()) or (fits_text(model) and fits_text(label))
    ):
        raise _no_head(model, version, label)
    inline_bytes = 0
    header_bytes = _REQUEST_BYTES + _CHARACTER_BYTES * (len(model) + len(label))
    for item in inputs:
        name = item[0]
        rank = len(item[2])
        if rank > RANK_MAX or not name.isascii():
            _check_input(name, rank)
        header_bytes += _TENSOR_BYTES + _CHARACTER_BYTES * len(name) + _DIMENSION_BYTES * rank
        if not item[3]:  # INLINE
            inline_bytes += item[6]
    if tail is not PLAIN:
        header_bytes += _tail_bytes(tail)
    if header_bytes > NAME_BYTES_MAX or inline_bytes > m.INLINE_BYTES_MAX:
        header_bytes = _looked_at_closely(head, inputs, tail, inline_bytes, header_bytes)
    return Prepared(head, inputs, tail, memory, inline_bytes, header_bytes)


def head_of(model: Any, version: Any, label: Any) -> Head:
    """What a user gave, if it has the right types; `checked` looks at the values."""
    if type(model) is not str or type(label) is not str or type(version) is not int:
        raise _no_head(model, version, label)
    return (model, version, label)


def _no_head(model: object, version: object, label: object) -> RequestError:
    return RequestError(
        f"expected a model's name, a version and a label, got {model!r:.80}, {version!r:.80}"
        f" and {label!r:.80}"
    )


def _check_input(name: object, rank: int) -> None:
    if not fits_text(name):
        raise unfit_text("an input's name", name)
    if rank > RANK_MAX:
        raise RequestError(f"input {name!r}: {rank} dimensions, expected at most {RANK_MAX}")


def _looked_at_closely(
    head: Head,
    inputs: tuple[PackedInput, ...],
    tail: Tail,
    inline_bytes: int,
    header_bytes: int,
) -> int:
    """What is large; returns the bytes of header to reckon with."""
    if len(head[0]) > NAME_BYTES_MAX or len(head[2]) > NAME_BYTES_MAX:
        is_label = len(head[0]) <= NAME_BYTES_MAX
        raise unfit_text("a label", head[2]) if is_label else unfit_text("a model's name", head[0])
    for item in inputs:
        _check_input(item[0], len(item[2]))
    if len(inputs) > ARRAY_ITEMS_MAX:
        raise RequestError(f"{len(inputs)} inputs, expected at most {ARRAY_ITEMS_MAX}")
    if inline_bytes > m.INLINE_BYTES_MAX:
        raise too_large(head[0], inline_bytes, m.INLINE_BYTES_MAX)
    if header_bytes > m.CLIENT_HEADER_BYTES_MAX:
        return _encoded_bytes(head, inputs, tail)
    return header_bytes


def too_large(model: str, inline_bytes: int, limit: int) -> RequestError:
    return RequestError(
        f"model {model!r}: {inline_bytes} bytes of inline inputs, expected at most {limit}; send"
        " large tensors through shared memory"
    )


def _encoded_bytes(head: Head, inputs: tuple[PackedInput, ...], tail: Tail) -> int:
    """Where the estimate says that it might not fit, only encoding tells."""
    numbers = (_INT64_MAX, _INT64_MAX)
    tensors = [(*item[:4], _INT64_MAX, _INT64_MAX, item[6]) for item in inputs]
    found = len(encode(m.Infer([(*numbers, *head, tensors, *tail)])))  # type: ignore[arg-type]
    if found > m.CLIENT_HEADER_BYTES_MAX:
        raise RequestError(
            f"model {head[0]!r}: names, shapes and parameters take {found} bytes, expected at most"
            f" {m.CLIENT_HEADER_BYTES_MAX}"
        )
    return found


def _tail_bytes(tail: Tail) -> int:
    """At most so many bytes of a header a tail takes, beyond what PLAIN does."""
    outputs, _, _, sequence, account, fairness, trace, parameters = tail
    characters = len(account) + len(fairness) + len(trace)
    for output in outputs:
        characters += len(output[0])
    if sequence is not None and isinstance(sequence[0], str):
        characters += len(sequence[0])
    for name, value in parameters.items():
        characters += len(name) + (len(value) if isinstance(value, str) else 0)
    items = len(outputs) + len(parameters)
    return _TENSOR_BYTES * (1 + items) + _CHARACTER_BYTES * characters


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
    _check_input(name, 0)
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
    dims = (type(dim) is int and -_INT64_MAX <= dim <= _INT64_MAX for dim in shape)
    if len(shape) > RANK_MAX or not all(dims):
        raise RequestError(
            f"input {name!r}: expected a shape of at most {RANK_MAX} integers, got {shape!r:.80}"
        )
    if place not in (INLINE, REGION):
        raise RequestError(f"input {name!r}: expected Place.INLINE or Place.REGION, got {place!r}")
    if place == REGION:
        for number in (region, offset, size):
            if type(number) is not int or not 0 <= number <= _INT64_MAX:
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
            fits = -_INT64_MAX - 1 <= value <= _INT64_MAX
        elif kind is str:
            fits = fits_text(value, STRING_BYTES_MAX) and _utf8_bytes(value) <= STRING_BYTES_MAX
        else:
            fits = kind is bool or kind is float
        if not fits:
            raise RequestError(
                f"parameter {name!r}: expected a string of at most {STRING_BYTES_MAX} bytes, a"
                f" 64-bit integer (-2**63 to 2**63-1), a float or a boolean, got {value!r:.80}"
            )
    return parameters

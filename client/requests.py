"""What a request is made of below NumPy, and whether it fits into a message. Pure.

Owns InferInput, OutputPlace and Prepared: everything of a request but its id and its fate, and how
much room it takes. What a user gave for each field is checked before, see fields. Never looks into
a buffer.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from naiad.client.texts import fits_text, unfit_text
from naiad.protocol import messages as m
from naiad.protocol.checks import (
    ARRAY_ITEMS_MAX,
    NAME_BYTES_MAX,
    RANK_MAX,
)
from naiad.protocol.codec import encode
from naiad.protocol.errors import RequestError

SMALL_BYTES_MAX: Final = 16 * 1024
"""Inputs up to this size are packed into one payload frame per message."""

_REQUEST_BYTES: Final = 96
"""Most that a request's numbers, nulls and array heads take in a header."""
_TENSOR_BYTES: Final = 64
_DIMENSION_BYTES: Final = 9
_CHARACTER_BYTES: Final = 4
INT64_MAX: Final = 2**63 - 1

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


def checked(
    head: Head, inputs: tuple[PackedInput, ...], tail: Tail = PLAIN, memory: object = None
) -> Prepared:
    """The parts of a request. Raises RequestError for what can never be sent."""
    model, version, label = head
    if not -1 <= version <= INT64_MAX or not (
        (model.isascii() and label.isascii()) or (fits_text(model) and fits_text(label))
    ):
        raise _no_head(model, version, label)
    inline_bytes = 0
    header_bytes = _REQUEST_BYTES + _CHARACTER_BYTES * (len(model) + len(label))
    for item in inputs:
        name = item[0]
        rank = len(item[2])
        if rank > RANK_MAX or not name.isascii():
            check_input(name, rank)
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


def check_input(name: object, rank: int) -> None:
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
        check_input(item[0], len(item[2]))
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
    numbers = (INT64_MAX, INT64_MAX)
    tensors = [(*item[:4], INT64_MAX, INT64_MAX, item[6]) for item in inputs]
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

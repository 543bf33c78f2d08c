"""What a request is made of below NumPy, and how waiting requests become INFER messages. Pure.

Owns the layout of INLINE payload frames: inputs of at most SMALL_BYTES_MAX share one frame, larger
ones have a frame of their own, which travels by reference. Never looks into a buffer.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from naiad.protocol import messages as m
from naiad.protocol.codec import NAME_BYTES_MAX, RANK_MAX, STRING_BYTES_MAX, TIMEOUT_US_MAX, encode
from naiad.protocol.datatypes import ITEM_BYTES
from naiad.protocol.errors import RequestError

SMALL_BYTES_MAX: Final = 16 * 1024
"""Inputs up to this size are packed into one payload frame per message."""

_ENVELOPE_BYTES: Final = 16
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


class OutputPlace(NamedTuple):
    """Where an output may be written: `size` bytes at `offset` of a region of this client.

    A result larger than `size` is an error of that request, as in Triton.
    """

    region: int
    offset: int
    size: int


PackedInput = tuple[str, str, tuple[int, ...], int, int, int, int, Buffer | None]
"""(name, datatype, shape, place, region, offset, size, data): an InferInput ready to send."""

Tail = tuple[tuple[m.OutputRequest, ...], int, int, m.Sequence | None, str, str, str, m.Parameters]
"""The last fields of an InferRequest: outputs, priority, timeout_us, ..., parameters."""

PLAIN: Final[Tail] = ((), 0, 0, None, "", "", "", {})


class Request:
    """One request from submit until its answer, and longer while a worker may use its memory.

    `token` is whoever waits (None: nobody any more). `memory` is opaque here: what the shell may
    reuse once no process reads or writes it. `attempt` is 0 until it was first sent. `ended`: it
    need not be sent (again).
    """

    __slots__ = (
        "attempt", "deadline_ns", "ended", "header_bytes", "id", "inline_bytes", "inputs", "label",
        "memory", "model", "tail", "token", "version",
    )  # fmt: skip

    def __init__(
        self,
        ident: int,
        model: str,
        version: int,
        label: str,
        inputs: tuple[PackedInput, ...],
        tail: Tail,
        token: Any,
    ) -> None:
        self.id = ident
        self.attempt = 0
        self.ended = False
        self.model = model
        self.version = version
        self.label = label
        self.inputs = inputs
        self.tail = tail
        self.token = token
        self.memory: Any = None
        self.deadline_ns = 0
        inline_bytes = 0
        header_bytes = _REQUEST_BYTES + _CHARACTER_BYTES * (len(model) + len(label))
        for item in inputs:
            header_bytes += (
                _TENSOR_BYTES + _CHARACTER_BYTES * len(item[0]) + _DIMENSION_BYTES * len(item[2])
            )
            if item[3] == INLINE:
                inline_bytes += item[6]
        if tail is not PLAIN:
            header_bytes += _tail_bytes(tail)
        self.inline_bytes = inline_bytes
        self.header_bytes = header_bytes

    def __repr__(self) -> str:
        return f"<request {self.id} of {self.model!r}, attempt {self.attempt}>"


def _tail_bytes(tail: Tail) -> int:
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


def packed(given: InferInput) -> PackedInput:
    """An InferInput as the session takes it.

    Raises:
        RequestError: a field has the wrong type or size.
    """
    name, datatype, shape, data, place, region, offset, size = given
    if type(name) is not str or len(name) > NAME_BYTES_MAX:
        raise RequestError(f"an input's name must be a string, got {name!r:.80}")
    if datatype not in ITEM_BYTES:
        raise RequestError(
            f"input {name!r}: unknown datatype {datatype!r}; expected one of {sorted(ITEM_BYTES)}"
        )
    shape = tuple(shape)
    if len(shape) > RANK_MAX or not all(type(dim) is int and dim <= _INT64_MAX for dim in shape):
        raise RequestError(
            f"input {name!r}: expected a shape of at most {RANK_MAX} integers, got {shape!r:.80}"
        )
    if place == REGION:
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
    priority: int,
    timeout_us: int,
    sequence: m.Sequence | None,
    accounting_key: str,
    fairness_key: str,
    traceparent: str,
    parameters: m.Parameters | None,
) -> Tail:
    """The checked last fields of a request; a wrong one must not spoil its whole message.

    Raises:
        RequestError: a field has the wrong type or range.
    """
    if type(priority) is not int or not 0 <= priority <= _PRIORITY_MAX:
        raise RequestError(f"expected a priority of 0 to 2**64-1, got {priority!r:.80}")
    if type(timeout_us) is not int or not 0 <= timeout_us <= TIMEOUT_US_MAX:
        raise RequestError(f"expected timeout_us of 0 to {TIMEOUT_US_MAX}, got {timeout_us!r:.80}")
    for what, text in (
        ("accounting_key", accounting_key),
        ("fairness_key", fairness_key),
        ("traceparent", traceparent),
    ):
        if type(text) is not str or len(text) > NAME_BYTES_MAX:
            raise RequestError(f"expected {what} as a string, got {text!r:.80}")
    for output in outputs:
        if type(output[0]) is not str or len(output[0]) > NAME_BYTES_MAX:
            raise RequestError(f"expected an output's name as a string, got {output[0]!r:.80}")
    if sequence is not None:
        _check_sequence(sequence)
    return (
        outputs,
        priority,
        timeout_us,
        sequence,
        accounting_key,
        fairness_key,
        traceparent,
        check_parameters(parameters),
    )


def _check_sequence(sequence: m.Sequence) -> None:
    ident, start, end = sequence
    fits = (type(ident) is str and len(ident) <= NAME_BYTES_MAX) or (
        type(ident) is int and 0 <= ident <= _PRIORITY_MAX
    )
    if not fits or type(start) is not bool or type(end) is not bool:
        raise RequestError(f"expected a sequence (id, start, end), got {sequence!r:.80}")


def check_parameters(parameters: m.Parameters | None) -> m.Parameters:
    """The same parameters, or RequestError when they cannot travel."""
    if not parameters:
        return {}
    if len(parameters) > m.PARAMETERS_MAX:
        raise RequestError(f"{len(parameters)} parameters, expected at most {m.PARAMETERS_MAX}")
    for name, value in parameters.items():
        kind = type(value)
        if type(name) is not str or len(name) > NAME_BYTES_MAX:
            raise RequestError(f"expected a parameter's name as a string, got {name!r:.80}")
        if kind is int:
            fits = -_INT64_MAX <= value <= _INT64_MAX  # type: ignore[operator]
        elif kind is str:
            fits = len(value.encode()) <= STRING_BYTES_MAX  # type: ignore[union-attr]
        else:
            fits = kind is bool or kind is float
        if not fits:
            raise RequestError(
                f"parameter {name!r}: expected a string of at most {STRING_BYTES_MAX} bytes, a"
                f" 64-bit integer, a float or a boolean, got {value!r:.80}"
            )
    return parameters


def infer_message(waiting: deque[Request], inline_bytes_max: int) -> list[Buffer] | None:
    """Takes from the left of `waiting` as many requests as fit into one INFER message.

    Returns the header and its payload frames, or None when nobody waits any more.
    """
    rows: list[Any] = []
    payload: list[Buffer] = []
    small: list[Buffer] = []
    small_bytes = 0
    shared = -1
    header_bytes = _ENVELOPE_BYTES
    payload_bytes = 0
    while waiting:
        request = waiting[0]
        if rows and (
            header_bytes + request.header_bytes > m.CLIENT_HEADER_BYTES_MAX
            or payload_bytes + request.inline_bytes > inline_bytes_max
            or len(payload) + len(request.inputs) > m.PAYLOAD_FRAMES_MAX
            or len(rows) == m.REQUESTS_PER_MESSAGE_MAX
        ):
            break
        waiting.popleft()
        if request.ended:
            continue
        header_bytes += request.header_bytes
        payload_bytes += request.inline_bytes
        request.attempt += 1
        tensors = []
        for name, datatype, shape, place, region, offset, size, data in request.inputs:
            if place != INLINE:
                tensors.append((name, datatype, shape, place, region, offset, size))
            elif size <= SMALL_BYTES_MAX:
                if shared < 0:
                    shared = len(payload)
                    payload.append(b"")
                tensors.append((name, datatype, shape, INLINE, shared, small_bytes, size))
                small.append(data)  # type: ignore[arg-type]
                small_bytes += size
            else:
                tensors.append((name, datatype, shape, INLINE, len(payload), 0, size))
                payload.append(data)  # type: ignore[arg-type]
        rows.append(
            (request.id, request.attempt, request.model, request.version, request.label,
             tuple(tensors), *request.tail)
        )  # fmt: skip
    if not rows:
        return None
    if shared >= 0:
        payload[shared] = small[0] if len(small) == 1 else b"".join(small)
    return [encode(m.Infer(tuple(rows))), *payload]

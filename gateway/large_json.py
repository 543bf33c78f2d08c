"""Large JSON, read and written in slices, between which all others of this gateway are served.

Whatever reads 60 MB of numbers at once holds the process for seconds. Here it is done a few
milliseconds at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from naiad.client.requests import Buffer
from naiad.gateway.calls import AnswerOutput, Arena, CallInput, InferCall
from naiad.gateway.http_parameters import Json, array_of, nested_too_deeply, no_json, parsed
from naiad.gateway.http_request import Inputs, call_with
from naiad.gateway.json_members import members
from naiad.gateway.json_slices import Cut, Slice, cut_out
from naiad.gateway.json_spaces import Squeezed, squeezed
from naiad.gateway.json_strings import LongString
from naiad.gateway.json_tensors import (
    check_count,
    check_readable,
    flattened,
    from_json,
    nested_unevenly,
    packed,
    text_bytes,
    text_slices,
)
from naiad.gateway.long_work import LongWork, Steps
from naiad.protocol.datatypes import LENGTH_PREFIX_BYTES, element_count
from naiad.protocol.errors import RequestError

LIGHT_BYTES: Final = 4 * 1024
"""Of a request's JSON that is read at once whatever it says: 1 ms."""
TEXT_BYTES_MIN: Final = 64 * 1024
"""Of one that is never read at once; in between it depends on what is in it."""
COST_MAX: Final = 8192
"""Of a text that is read at once: so many numbers take 2 ms, from their digits to a tensor."""
_KEY_COST: Final = 4
_OBJECT_COST: Final = 45
"""Reading one takes so many times as long as a number: each may be an input."""
INPUTS_PER_STEP: Final = 64
"""Of a call, that are looked at at once: 1 ms."""
STEP_TEXT_BYTES: Final = 16 * 1024
"""Of outputs, that are written at once, and at most one slice of an array: 2 ms."""
_OUTPUT_TEXT_BYTES: Final = 256
"""As much as writing an output that has next to nothing in it takes."""
MARK_BYTES: Final = 16
"""Random, of what stands for a part of a text."""
_KNOWN: Final = frozenset({"id", "inputs", "outputs", "parameters"})
"""Members of a request."""


def is_light(body: Buffer, length: int) -> bool:
    """Whether the JSON, the first `length` bytes, may be read at once: it takes 3 ms at most."""
    if length <= LIGHT_BYTES or length >= TEXT_BYTES_MIN:
        return length <= LIGHT_BYTES
    text = bytes(body[:length])
    cost = text.count(b",") + text.count(b"[") + _KEY_COST * text.count(b":")
    return cost + _OBJECT_COST * text.count(b"{") <= COST_MAX


class LargeJson:
    """`call`, `texts`."""

    def __init__(self, long_work: LongWork) -> None:
        self._long_work = long_work

    async def call(
        self,
        model: str,
        version: int,
        body: Buffer,
        length: int,
        limit_bytes: int,
        place: tuple[Arena, int] | None,
    ) -> InferCall:
        """What `infer_call` makes of a body. Raises RequestError, Unavailable."""
        return await self._long_work.run(
            length, call_in_steps(model, version, body, length, limit_bytes, place)
        )

    async def texts(self, outputs: Sequence[AnswerOutput]) -> dict[str, list[bytes]]:
        """What `to_json` makes of each, by name, in parts. Raises RequestError, Unavailable."""
        size = sum(len(one.data or b"") for one in outputs)
        return await self._long_work.run(size, _texts(outputs))


class _Input(NamedTuple):
    """One whose array was taken out of the text, and its bytes as far as they are read."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    slices: list[Slice]
    found: bytearray


def call_in_steps(
    model: str,
    version: int,
    body: Buffer,
    length: int,
    limit_bytes: int,
    place: tuple[Arena, int] | None,
) -> Steps[InferCall]:
    short = yield from squeezed(memoryview(body)[:length])
    cut = yield from cut_out(short.text, secrets.token_hex(MARK_BYTES))
    unread = dict(cut.taken)
    inputs: list[_Input] = []

    def converted(name: str, datatype: str, shape: tuple[int, ...], data: list[Any]) -> Buffer:
        slices = cut.taken.get(data[0]) if len(data) == 1 and type(data[0]) is str else None
        if slices is None:
            return from_json(name, datatype, shape, data)
        unread.pop(data[0], None)
        inputs.append(_Input(name, datatype, shape, slices, bytearray()))
        return inputs[-1].found

    try:
        found = yield from walked(cut, _KNOWN, short.position)
    except RequestError:
        # What is wrong may have begun in an array; then that is the place to name.
        for slices in cut.taken.values():
            yield from _looked_at(slices, short)
        raise
    yield
    reader = Inputs(model, body, length, converted, limit_bytes, place)
    read: list[CallInput] = []
    for count, one in enumerate(array_of(found, "inputs"), 1):
        read.append(reader.input(one))
        if count % INPUTS_PER_STEP == 0:
            yield
    reader.check_end()
    call = call_with(found, model, version, tuple(read))
    for input_ in inputs:
        yield from _filled(input_, short)
    for slices in unread.values():
        yield from _looked_at(slices, short)
    yield
    return call


def walked(cut: Cut[Any], wanted: frozenset[str], position: Callable[[int], int]) -> Steps[Json]:
    """What stands beside the arrays. Raises RequestError as `parsed_object` does."""
    try:
        text = cut.rest.decode()
        yield
        found = yield from members(text, wanted)
    except RecursionError:
        raise nested_too_deeply() from None
    except ValueError as fault:
        raise no_json(fault, lambda at: position(cut.position(at))) from None
    return found


def _looked_at(slices: list[Slice], short: Squeezed) -> Steps[None]:
    """Those that nobody wants: what is in a text is JSON, or the text is refused."""
    for part in slices:
        yield
        string = _long(part, short)
        _elements(part, string, short)
        if string is not None:
            for _ in string.pieces():
                yield


def _filled(one: _Input, short: Squeezed) -> Steps[None]:
    """Read the elements. Raises RequestError as `from_json` does."""
    name, datatype, shape, slices, found = one
    check_readable(name, datatype)
    count_max = element_count(shape)
    count, depth = 0, -1
    for part in slices:
        yield
        string = _long(part, short)
        nested, flat = flattened(name, _elements(part, string, short))
        if not flat:
            continue
        if depth not in (-1, nested):
            raise nested_unevenly(name)
        depth = nested
        count += len(flat)
        if count > count_max:  # only how many there are is of interest
            continue
        start = len(found)
        if string is not None and datatype != "BYTES":  # to be quoted in an error
            flat = [next(string.pieces())]
        found += packed(name, datatype, flat)
        if string is not None:
            for piece in string.pieces():
                found += text_bytes(name, piece)
                yield
            size = len(found) - start - LENGTH_PREFIX_BYTES
            found[start : start + LENGTH_PREFIX_BYTES] = size.to_bytes(
                LENGTH_PREFIX_BYTES, "little"
            )
    check_count(name, shape, count)


def _long(part: Slice, short: Squeezed) -> LongString | None:
    if not part.is_long:
        return None
    return LongString(short.text, part.start, part.end, short.position)


def _elements(part: Slice, string: LongString | None, short: Squeezed) -> list[Any]:
    """Those of a slice; of a long one an empty string, which its string is to fill."""
    if string is None:
        start = part.start
        whole = short.text[start : part.end]
        found = parsed(part.text(whole), lambda at: short.position(start + part.position(at)))
    else:
        long = string
        found = parsed(part.text(long.around), lambda at: long.position(part.position(at)))
    elements: list[Any] = found
    return elements


def _texts(outputs: Sequence[AnswerOutput]) -> Steps[dict[str, list[bytes]]]:
    found: dict[str, list[bytes]] = {}
    text_bytes = 0
    for name, datatype, shape, data in outputs:
        parts = found[name] = []
        for part in text_slices(name, datatype, shape, data or memoryview(b"")):
            parts.append(part)
            text_bytes += len(part)
            if text_bytes >= STEP_TEXT_BYTES:
                text_bytes = 0
                yield
        text_bytes += _OUTPUT_TEXT_BYTES
    return found

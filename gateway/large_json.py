"""Large JSON, read and written in slices, between which all others of this gateway are served.

Whatever reads 60 MB of numbers at once holds the process for seconds. Here it is done a few
milliseconds at a time, one slice in each turn of the event loop, however many requests wait for
theirs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator
from typing import Any, Final, NamedTuple, TypeVar

from naiad.client.requests import Buffer
from naiad.gateway.calls import Arena, InferCall
from naiad.gateway.http_parameters import parsed, parsed_object
from naiad.gateway.http_request import call_of
from naiad.gateway.json_slices import Slice, cut_out
from naiad.gateway.json_tensors import (
    check_count,
    check_readable,
    flattened,
    from_json,
    nested_unevenly,
    packed,
    text_slices,
)
from naiad.gateway.pending import over_budget
from naiad.protocol.datatypes import element_count

TEXT_BYTES_MIN: Final = 128 * 1024
"""Of a request's JSON; smaller ones are read at once, in a few milliseconds."""
TENSOR_BYTES_MIN: Final = 32 * 1024
"""Of an output that is written as JSON, likewise."""
UNDER_WAY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of JSON that is being read and of tensors that are being written; beyond, requests are refused.
A tensor takes up to five times its size as text."""
_MARK_BYTES: Final = 16

T = TypeVar("T")
Steps = Generator[None, None, T]


class LargeJson:
    """`call`, `text`."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._under_way_bytes = 0

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
        return await self._in_turns(length, _call(model, version, body, length, limit_bytes, place))

    async def text(
        self, name: str, datatype: str, shape: tuple[int, ...], data: memoryview
    ) -> list[bytes]:
        """What `to_json` makes of an output, in parts. Raises RequestError, Unavailable."""
        return await self._in_turns(len(data), _text(name, datatype, shape, data))

    async def _in_turns(self, size: int, steps: Steps[T]) -> T:
        if self._under_way_bytes + size > UNDER_WAY_BYTES_MAX:
            raise over_budget(
                f"{self._under_way_bytes} bytes of large JSON are under way in this gateway,"
                f" {UNDER_WAY_BYTES_MAX} at most; use binary data"
            )
        self._under_way_bytes += size
        try:
            while True:
                async with self._turn:
                    try:
                        next(steps)
                    except StopIteration as end:
                        found: T = end.value
                        return found
                    await asyncio.sleep(0)
        finally:
            self._under_way_bytes -= size
            steps.close()


class _Input(NamedTuple):
    """One whose array was taken out of the text, and its bytes as far as they are read."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    slices: list[Slice]
    found: bytearray


def _call(
    model: str,
    version: int,
    body: Buffer,
    length: int,
    limit_bytes: int,
    place: tuple[Arena, int] | None,
) -> Steps[InferCall]:
    text = memoryview(body)[:length]
    cut = yield from cut_out(text, secrets.token_hex(_MARK_BYTES))
    inputs: list[_Input] = []

    def converted(name: str, datatype: str, shape: tuple[int, ...], data: list[Any]) -> Buffer:
        slices = cut.slices.get(data[0]) if len(data) == 1 and type(data[0]) is str else None
        if slices is None:
            return from_json(name, datatype, shape, data)
        inputs.append(_Input(name, datatype, shape, slices, bytearray()))
        return inputs[-1].found

    found = parsed_object(cut.rest, cut.position)
    yield
    call = call_of(found, model, version, body, length, converted, limit_bytes, place)
    for one in inputs:
        yield from _filled(one, text)
    return call


def _filled(one: _Input, text: memoryview) -> Steps[None]:
    """Read the elements. Raises RequestError as `from_json` does."""
    name, datatype, shape, slices, found = one
    check_readable(name, datatype)
    count_max = element_count(shape)
    count, depth = 0, -1
    for part in slices:
        yield
        nested, flat = flattened(name, parsed(part.text(text), part.position))
        if not flat:
            continue
        if depth not in (-1, nested):
            raise nested_unevenly(name)
        depth = nested
        count += len(flat)
        if count <= count_max:  # else only how many there are is of interest
            found += packed(name, datatype, flat)
    check_count(name, shape, count)


def _text(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Steps[list[bytes]]:
    parts: list[bytes] = []
    for part in text_slices(name, datatype, shape, data):
        parts.append(part)
        yield
    return parts

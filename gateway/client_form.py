"""A call as the client library sends it, and what came back as an answer."""

from __future__ import annotations

from typing import Final

from naiad.client.aio import AsyncClient
from naiad.client.fields import packed, tail
from naiad.client.memory import Placement
from naiad.client.requests import INLINE, PLAIN, REGION, InferInput, PackedInput, Prepared, checked
from naiad.client.results import InferResult
from naiad.client.texts import fits_text, unfit_text
from naiad.gateway.calls import (
    TENSORS_MAX,
    AnswerOutput,
    ArenaPart,
    CallOutput,
    InferAnswer,
    InferCall,
    RegionPart,
)
from naiad.gateway.users import NOBODY
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import OutputRequest

_PLACE_MAX: Final = 2**63


def prepared(client: AsyncClient, call: InferCall, ids: dict[str, int]) -> Prepared:
    """A call as the client library sends it. Raises RequestError for what can never be sent."""
    for what, count in (("inputs", len(call.inputs)), ("outputs", len(call.outputs))):
        if count > TENSORS_MAX:
            raise RequestError(f"{count} {what}, expected at most {TENSORS_MAX}")
    if call.id and not fits_text(call.id):
        raise unfit_text("id", call.id)  # the client library would call it a label
    inputs: list[PackedInput] = []
    keeps: list[object] = []
    for name, datatype, shape, data in call.inputs:
        if isinstance(data, RegionPart):
            place = _checked(data)
            given = InferInput(
                name, datatype, shape, None, REGION, ids[data.name], place.offset, place.byte_size
            )
        elif isinstance(data, ArenaPart):
            given = data.arena.input(name, datatype, shape, data.offset, data.byte_size)
            keeps.append(given.keep)
        else:
            given = InferInput(name, datatype, shape, data, INLINE)
        inputs.append(packed(given))
    shared, memory = client.share(tuple(inputs))
    if keeps:
        memory = memory or Placement()
        memory.keeps += keeps
    head = (call.model, call.version, call.id)
    outputs = tuple([_output(one, ids) for one in call.outputs])
    user = call.user
    is_plain = not (outputs or call.parameters or call.priority or call.timeout_us)
    if not is_plain or call.sequence is not None or user is not NOBODY:
        end = tail(
            outputs, call.priority, call.timeout_us, call.sequence, *user, "", call.parameters
        )
        return checked(head, shared, end, memory)
    return checked(head, shared, PLAIN, memory)


def out_of_arena(call: InferCall) -> InferCall | None:
    """The same call with copies of what lies in an arena; None: nothing does."""
    inputs = []
    is_changed = False
    for one in call.inputs:
        if isinstance(one.data, ArenaPart):
            is_changed = True
            arena, offset, size = one.data
            one = one._replace(data=bytes(arena.view[offset : offset + size]))
        inputs.append(one)
    return call._replace(inputs=tuple(inputs)) if is_changed else None


def _output(wanted: CallOutput, ids: dict[str, int]) -> OutputRequest:
    if wanted.region is None:
        return OutputRequest(wanted.name)
    place = _checked(wanted.region)
    return OutputRequest(wanted.name, REGION, ids[place.name], place.offset, place.byte_size)


def _checked(part: RegionPart) -> RegionPart:
    if part.offset + part.byte_size >= _PLACE_MAX:
        raise RequestError(
            f"Invalid offset + byte size for shared memory region: '{part.name}' has no"
            f" {part.byte_size} bytes at {part.offset}"
        )
    return part


def answer_of(call: InferCall, result: InferResult) -> InferAnswer:
    """What came back."""
    if call.outputs:
        elsewhere = {one.name for one in call.outputs if one.region is not None}
        rows = [AnswerOutput._make(row) for row in result.raw(elsewhere)]
    else:
        rows = [AnswerOutput._make(row) for row in result.raw()]
    return InferAnswer(call.model, result.version, call.id, tuple(rows), result.parameters)

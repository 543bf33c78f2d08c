"""One call from its start until its answer: what the client library calls back.

Costs no task for the usual call. Those that need something first (the id of a region that is
registered by name, a model's configuration for classification) wait for it in a task of their own.
Owns the call's place in the plane's budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from naiad.client.aio import AsyncClient
from naiad.client.memory import Placement
from naiad.client.requests import (
    INLINE,
    PLAIN,
    REGION,
    InferInput,
    PackedInput,
    Prepared,
    checked,
    fits_text,
    packed,
    tail,
    unfit_text,
)
from naiad.client.results import InferResult
from naiad.gateway.calls import (
    TENSORS_MAX,
    AnswerOutput,
    ArenaPart,
    CallOutput,
    InferAnswer,
    InferCall,
    RegionPart,
)
from naiad.gateway.error_text import over_budget
from naiad.gateway.known_classes import Classes, KnownClasses
from naiad.gateway.long_work import LongWork
from naiad.gateway.users import NOBODY
from naiad.protocol.errors import Code, InternalError, NaiadError, RequestError
from naiad.protocol.messages import OutputRequest

LOG: Final = logging.getLogger("naiad.gateway")

Outcome = InferAnswer | NaiadError
Done = Callable[[Outcome], None]
"""Called once, never inside `start`, and not after `cancel`."""

SERVER_FULL: Final = "the server's budget for this gateway is used up"

_PLACE_MAX: Final = 2**63


class Regions(Protocol):
    """Ids of regions by the name they are registered with."""

    def known(self, names: frozenset[str]) -> dict[str, int] | None: ...

    async def resolved(self, names: frozenset[str]) -> dict[str, int]: ...

    def forget(self, names: frozenset[str]) -> None: ...


class Pending:
    """A call under way; `cancel` when nobody waits for it any more."""

    __slots__ = ("_call", "_classes", "_client", "_done", "_ended", "_id", "_is_over",
                 "_known_classes", "_long_work", "_names", "_regions", "_retries",
                 "_task")  # fmt: skip

    def __init__(
        self,
        client: AsyncClient,
        regions: Regions,
        known_classes: KnownClasses,
        long_work: LongWork,
        call: InferCall,
        done: Done,
        ended: Callable[[], None],
    ) -> None:
        self._client = client
        self._regions = regions
        self._call = call
        self._done = done
        self._ended = ended
        self._known_classes = known_classes
        self._long_work = long_work
        self._classes: Classes | None = None
        self._names = region_names(call)
        self._id = 0
        self._is_over = False
        self._retries = 1
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Give the call to the broker. Raises NaiadError when it cannot be sent at all."""
        ids: dict[str, int] | None = None
        if self._names:
            ids = self._regions.known(self._names)
        if (self._names and ids is None) or any(one.classification for one in self._call.outputs):
            self._task = asyncio.get_running_loop().create_task(self._start_later())
            return
        self._submit(ids or {})

    def _submit(self, ids: dict[str, int]) -> None:
        parts = prepared(self._client, self._call, ids)
        self._id = self._client.submit(parts, self)
        if not self._id:
            raise over_budget(SERVER_FULL)

    async def _start_later(self) -> None:
        try:
            if any(one.classification for one in self._call.outputs) and self._classes is None:
                model, version = self._call.model, self._call.version
                self._classes = await self._known_classes.of(model, version)
            ids = await self._regions.resolved(self._names) if self._names else {}
            self._task = None
            self._submit(ids)
        except NaiadError as fault:
            self._end(fault)

    def cancel(self) -> None:
        """Nobody waits: the broker is told at once. Harmless when it is over."""
        if self._is_over:
            return
        self._is_over = True
        self._ended()
        if self._task is not None:
            self._task.cancel()
        if self._id:
            self._client.abandon(self._id)

    # --- what the client library calls -----------------------------------------------------------

    def done(self) -> bool:
        return self._is_over

    def set_result(self, result: InferResult, /) -> None:
        try:
            answer = answer_of(self._call, result)
            if self._classes is not None:
                self._classify(answer, self._classes)
                return
            self._end(answer)
        except NaiadError as fault:
            self._end(fault)

    def _classify(self, answer: InferAnswer, classes: Classes) -> None:
        """At once, or beside others when that takes long. Raises RequestError."""
        from naiad.gateway.classification import classified, is_light

        counts = {one.name: one.classification for one in self._call.outputs}
        wanted = [(one, counts.get(one.name, 0)) for one in answer.outputs]
        if is_light(wanted, classes):
            rows = [classified(one, count, classes) if count else one for one, count in wanted]
            self._end(answer._replace(outputs=tuple(rows)))
            return
        self._id = 0  # the client library has no more to do with it
        work = self._classify_apart(answer, wanted, classes)
        self._task = asyncio.get_running_loop().create_task(work)

    async def _classify_apart(
        self, answer: InferAnswer, wanted: list[tuple[AnswerOutput, int]], classes: Classes
    ) -> None:
        from naiad.gateway.classification import classified_apart

        try:
            rows = [
                await classified_apart(one, count, classes, self._long_work) if count else one
                for one, count in wanted
            ]
            outcome: Outcome = answer._replace(outputs=tuple(rows))
        except NaiadError as fault:
            outcome = fault
        except Exception:
            LOG.exception("an answer could not be classified")
            outcome = InternalError("classification failed inside the gateway; see its log")
        self._task = None
        self._end(outcome)

    def set_exception(self, fault: NaiadError, /) -> None:
        if self._names and self._retries and fault.code is Code.NOT_FOUND:
            # Somebody unregistered a name and registered it again: its id is a new one.
            self._retries -= 1
            self._id = 0
            self._regions.forget(self._names)
            self._task = asyncio.get_running_loop().create_task(self._start_later())
            return
        inline = out_of_arena(self._call) if fault.code is Code.NOT_FOUND else None
        if inline is not None:
            # The server does not take this gateway's memory.
            self._call = inline
            try:
                self._submit({})
                return
            except NaiadError as refused:
                fault = refused
        self._end(fault)

    def _end(self, outcome: Outcome) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._ended()
        if isinstance(outcome, NaiadError):
            # Its frames hold this call: a circle that would keep the request's memory.
            outcome = outcome.with_traceback(None)
        try:
            self._done(outcome)
        except Exception:
            # The client library would lose the answers behind this one in the same turn.
            LOG.exception("an answer could not be handed on")


def region_names(call: InferCall) -> frozenset[str]:
    """Names of the regions that a call uses."""
    if not call.outputs:
        for one in call.inputs:
            if type(one.data) is RegionPart:
                break
        else:
            return _NO_NAMES
    names = [one.data.name for one in call.inputs if isinstance(one.data, RegionPart)]
    names += [one.region.name for one in call.outputs if one.region is not None]
    return frozenset(names)


_NO_NAMES: Final[frozenset[str]] = frozenset()


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

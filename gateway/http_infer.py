"""POST .../infer: a request to a call, a call's outcome to a response.

The usual request (no content coding, JSON or binary) costs no task: it is parsed, given to the data
plane, and answered from there. The others do first what they need in a task.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from naiad.client.requests import Buffer
from naiad.gateway.calls import AnswerOutput, Arena, BodyPlace, InferAnswer, InferCall
from naiad.gateway.compression import (
    CODINGS,
    COMPRESSED_BYTES_MIN,
    Inflation,
    InflationFault,
    accepted_coding,
    deflated,
)
from naiad.gateway.http_answer import BINARY_TYPE, JSON_TYPE, NOTHING, Body, answer_body
from naiad.gateway.http_connection import HttpConnection, Work
from naiad.gateway.http_message import Head, HttpRequest, Response, error_response
from naiad.gateway.http_quick import QuickCalls
from naiad.gateway.http_request import (
    HEADER_NAME,
    infer_call,
    json_length,
    raw_call,
    uses_regions,
)
from naiad.gateway.http_routes import Route
from naiad.gateway.http_status import HttpError, from_fault
from naiad.gateway.inflating import inflated_in_budget
from naiad.gateway.json_tensors import from_json, text_cost, to_json
from naiad.gateway.large_json import LIGHT_BYTES, LargeJson, is_light
from naiad.gateway.pending import Outcome
from naiad.gateway.plane import Plane, client_shm_disabled
from naiad.gateway.users import NOBODY, User, UserHeaders
from naiad.protocol.errors import NaiadError, RequestError
from naiad.protocol.messages import Parameters

LOG: Final = logging.getLogger("naiad.gateway")
ARENA_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a body that is received in shared memory; larger ones are copied there when they are whole."""
ALIGNMENT: Final = 64
"""Of the first tensor behind the JSON."""
DIGITS_MAX: Final = 10
IN_THREAD_BYTES_MIN: Final = 64 * 1024
"""Responses from here on are compressed in a thread, where zlib lets others run."""
LIGHT_COST: Final = 2048
"""Of an answer that is written as JSON at once: so many numbers take 2 ms."""
OUTPUT_COST: Final = 8
"""Of an output, whatever is in it."""

_LENGTH: Final = HEADER_NAME.lower().encode()
_CODING: Final = b"content-encoding"
_ACCEPT: Final = b"accept-encoding"


class InferPlan(NamedTuple):
    """What follows from a head. `json_bytes` is 0 when no template may be used."""

    route: Route
    coding: str
    """Of the response."""
    is_slow: bool
    """Something must be awaited before the request can be sent."""
    json_bytes: int
    user: User


class Inference:
    """Answers inference requests over HTTP. `forward`: headers that become parameters."""

    def __init__(
        self,
        plane: Plane,
        allows_regions: Callable[[bool], bool],
        forward: str = "",
        users: UserHeaders | None = None,
    ) -> None:
        self._users = users or UserHeaders()
        self._plane = plane
        self._allows_regions = allows_regions
        self._forward = re.compile(forward, re.IGNORECASE) if forward else None
        self._quick = QuickCalls(plane)
        self._large = LargeJson(plane.long_work)

    def plan(self, route: Route, head: Head) -> InferPlan:
        """What follows from the head of a request. Raises RequestError for no user's name."""
        accept = head.header(_ACCEPT)
        coding = accepted_coding(accept) if accept else ""
        length = head.headers.get(_LENGTH)
        is_raw = length is not None and not length.strip(b"0")
        is_slow = _CODING in head.headers or bool(coding) or is_raw
        json_bytes = 0
        may_be_quick = not is_slow and self._forward is None
        if may_be_quick and length is not None and len(length) < 8 and length.isdigit():
            json_bytes = int(length)
        return InferPlan(route, coding, is_slow, json_bytes, self._users.user(head.only))

    def begin(
        self, plan: InferPlan, request: HttpRequest, connection: HttpConnection
    ) -> Work | None:
        """Start it; the answer goes to the connection."""
        route, _, is_slow, json_bytes, user = plan
        try:
            if json_bytes:
                quick = self._quick.begin(request, json_bytes, user, connection)
                if quick is not None:
                    return quick
            body = request.body
            size = len(body)
            is_slow = is_slow or not size
            if is_slow or (size > LIGHT_BYTES and not is_light(body, _json_bytes(request, size))):
                work = partial(self._slowly, plan, request, connection.is_local)
                return asyncio.get_running_loop().create_task(replied(connection, work))
            call = self._call(route, request, body, connection.is_local)
            if json_bytes:
                self._quick.learn(request, json_bytes, call)
            if user is not NOBODY:
                call = call._replace(user=user)
            return self._plane.start(call, partial(self._done, connection, call))
        except NaiadError as fault:
            connection.reply(error_response(from_fault(fault)))
            return None

    def place(self, head: Head) -> BodyPlace | None:
        """Where the large binary tensors of this request can stay for good, aligned."""
        length = head.headers.get(_LENGTH, b"")
        if _CODING in head.headers or not length.isdigit() or head.length > ARENA_BYTES_MAX:
            return None
        offset = -int(length) % ALIGNMENT
        region = self._plane.client.region_now(offset + head.length)
        if region is None:
            return None
        return BodyPlace(region, offset, region.view[offset : offset + head.length])

    def _done(self, connection: HttpConnection, call: InferCall, outcome: Outcome) -> None:
        if isinstance(outcome, InferAnswer) and slow_outputs(call, outcome):
            work = partial(self._response, call, outcome)
            connection.goes_on(asyncio.get_running_loop().create_task(replied(connection, work)))
        else:
            connection.reply(response_of(call, outcome))

    def _call(self, route: Route, request: HttpRequest, body: Buffer, is_local: bool) -> InferCall:
        limit_bytes = self._plane.limits.input_bytes_max
        length = json_length(request.head.header(_LENGTH), len(body), limit_bytes)
        call = infer_call(
            route.model, route.version, body, length, from_json, limit_bytes, _place(request)
        )
        return self._completed(call, request, is_local)

    def _completed(self, call: InferCall, request: HttpRequest, is_local: bool) -> InferCall:
        if self._forward is not None:
            parameters = {**call.parameters, **forwarded(request.head, self._forward)}
            call = call._replace(parameters=parameters)
        if not self._allows_regions(is_local) and uses_regions(call):
            raise client_shm_disabled()
        return call

    async def _slowly(self, plan: InferPlan, request: HttpRequest, is_local: bool) -> Response:
        given = (request.head.header(_CODING) or "identity").strip().lower()
        if given == "identity":
            return await self._answered(plan, request, request.body, is_local)
        if given not in CODINGS:
            accepts = (("Accept-Encoding", ", ".join(CODINGS)),)
            raise HttpError(501, f"Unsupported compression type: {given[:40]!r}", headers=accepts)
        limit_bytes = self._plane.limits.input_bytes_max
        budget = self._plane.budget
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            budget.take(size)
            taken += size

        try:
            inflation = Inflation(given, request.body, limit_bytes)
            body = await inflated_in_budget(inflation, take)
            return await self._answered(plan, request, body, is_local)
        except InflationFault as fault:
            hint = "; Use --http-max-input-size to increase the limit." * fault.is_too_large
            raise RequestError(f"Request body: {fault}{hint}") from None
        finally:
            budget.give(taken)

    async def _answered(
        self, plan: InferPlan, request: HttpRequest, body: Buffer, is_local: bool
    ) -> Response:
        """The response to a request whose body is this."""
        route, coding = plan.route, plan.coding
        limit_bytes = self._plane.limits.input_bytes_max
        length = json_length(request.head.header(_LENGTH), len(body), limit_bytes)
        if not length:
            config = await self._plane.client.config(route.model, route.version)
            call = raw_call(route.model, route.version, body, config)
            call = self._completed(call, request, is_local)
        elif is_light(body, length):
            call = self._call(route, request, body, is_local)
        else:
            call = await self._large.call(
                route.model, route.version, body, length, limit_bytes, _place(request)
            )
            call = self._completed(call, request, is_local)
        call = call._replace(user=plan.user)
        response = await self._response(call, await self._plane.infer(call))
        size = sum(len(part) for part in response.parts)
        if not coding or response.status != 200 or size < COMPRESSED_BYTES_MIN:
            return response
        packed = await _apart(size, partial(deflated, coding, response.parts))
        content_type = JSON_TYPE if response.json_length is None else BINARY_TYPE
        return response._replace(
            parts=[packed], headers=(("Content-Encoding", coding),), content_type=content_type
        )

    async def _response(self, call: InferCall, answer: InferAnswer) -> Response:
        """The response with every large array written apart."""
        outputs = slow_outputs(call, answer)
        written = await self._large.texts(outputs) if outputs else NOTHING
        return response_of(call, answer, written)


def forwarded(head: Head, pattern: re.Pattern[str]) -> Parameters:
    """The headers that become parameters, under the names that the client gave them."""
    found: Parameters = {}
    for key, name in head.names.items():
        text = name.decode("latin-1")
        if pattern.search(text):
            found[text] = _text(head.headers[key])
    return found


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def slow_outputs(call: InferCall, answer: InferAnswer) -> list[AnswerOutput]:
    """Those that are written as JSON, when that takes long altogether."""
    most = 0
    for _, _, _, data in answer.outputs:
        most += OUTPUT_COST
        if data is not None:
            most += len(data)
    if most <= LIGHT_COST:  # which is what nearly every answer has to be asked
        return []
    wishes = {one.name: one.is_binary for one in call.outputs}
    found = [
        one
        for one in answer.outputs
        if one.data is not None and not wishes.get(one.name, call.is_binary_by_default)
    ]
    cost = sum(
        OUTPUT_COST + text_cost(datatype, shape, len(data or b""))
        for _, datatype, shape, data in found
    )
    return found if cost > LIGHT_COST else []


def _place(request: HttpRequest) -> tuple[Arena, int] | None:
    return request.place and (request.place.arena, request.place.offset)


def _json_bytes(request: HttpRequest, size: int) -> int:
    """How much of a body is JSON, as far as its header can be read."""
    length = request.head.headers.get(_LENGTH)
    is_said = length is not None and length.isdigit() and len(length) <= DIGITS_MAX
    return int(length or size) if is_said else size


def response_of(
    call: InferCall,
    outcome: InferAnswer | NaiadError,
    written: Mapping[str, Sequence[bytes]] = NOTHING,
) -> Response:
    """The response for a call's outcome; never raises. `written`: see `answer_body`."""
    if isinstance(outcome, NaiadError):
        return error_response(from_fault(outcome))
    try:
        body: Body = answer_body(call, outcome, to_json, written)
    except NaiadError as fault:
        return error_response(from_fault(fault))
    return Response(200, body.parts, body.json_length)


async def replied(connection: HttpConnection, work: Callable[[], Awaitable[Response]]) -> None:
    """Begin the work, await its response and send it; what went wrong becomes one."""
    try:
        response = await work()
    except HttpError as fault:
        response = error_response(fault)
    except NaiadError as fault:
        response = error_response(from_fault(fault))
    except Exception:
        # One request's misfortune must not end the others' connections; the log has the reason.
        LOG.exception("a request failed inside the gateway")
        response = error_response(HttpError(500, "the gateway failed; its log says why"))
    connection.reply(response)


async def _apart(size: int, work: Callable[[], bytes]) -> bytes:
    """Run it here when it is short, else in a thread."""
    if size < IN_THREAD_BYTES_MIN:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)

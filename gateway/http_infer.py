"""POST .../infer: a request to a call, a call's outcome to a response.

The usual request (no content coding, JSON or binary) costs no task: it is parsed, given to the data
plane, and answered from there. The others do first what they need in a task.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from naiad.client.requests import Buffer
from naiad.gateway.calls import InferAnswer, InferCall
from naiad.gateway.compression import (
    CODINGS,
    COMPRESSED_BYTES_MIN,
    accepted_coding,
    deflated,
    inflated,
)
from naiad.gateway.http_answer import BINARY_TYPE, JSON_TYPE, Body, answer_body
from naiad.gateway.http_connection import HttpConnection, Work
from naiad.gateway.http_message import HttpRequest, Response, error_response
from naiad.gateway.http_request import (
    HEADER_NAME,
    infer_call,
    json_length,
    raw_call,
    uses_regions,
)
from naiad.gateway.http_routes import Route
from naiad.gateway.http_status import HttpError, from_fault
from naiad.gateway.json_tensors import from_json, to_json
from naiad.gateway.pending import Outcome
from naiad.gateway.plane import Plane, client_shm_disabled
from naiad.protocol.errors import NaiadError

LOG: Final = logging.getLogger("naiad.gateway")
IN_THREAD_BYTES_MIN: Final = 64 * 1024
"""Bodies from here on are (de)compressed in a thread, where zlib lets others run."""

_LENGTH: Final = HEADER_NAME.lower().encode()
_CODING: Final = b"content-encoding"
_ACCEPT: Final = b"accept-encoding"


class Inference:
    """Answers inference requests over HTTP. `forward`: headers that become parameters."""

    def __init__(
        self, plane: Plane, allows_regions: Callable[[bool], bool], forward: str = ""
    ) -> None:
        self._plane = plane
        self._allows_regions = allows_regions
        self._forward = re.compile(forward, re.IGNORECASE) if forward else None

    def begin(self, route: Route, request: HttpRequest, connection: HttpConnection) -> Work | None:
        """Start it; the answer goes to the connection."""
        headers = request.headers
        accept = headers.get(_ACCEPT)
        coding = accepted_coding(accept.decode("latin-1")) if accept else ""
        if _CODING in headers or coding or headers.get(_LENGTH) == b"0":
            work = self._slowly(route, request, coding)
            return asyncio.get_running_loop().create_task(replied(connection, work))
        try:
            call = self._call(route, request, request.body, connection.is_local)
            return self._plane.start(call, partial(self._done, connection, call))
        except NaiadError as fault:
            connection.reply(error_response(from_fault(fault)))
            return None

    def _done(self, connection: HttpConnection, call: InferCall, outcome: Outcome) -> None:
        connection.reply(response_of(call, outcome))

    def _call(self, route: Route, request: HttpRequest, body: Buffer, is_local: bool) -> InferCall:
        limit_bytes = self._plane.limits.input_bytes_max
        length = json_length(request.header(_LENGTH), len(body), limit_bytes)
        call = infer_call(route.model, route.version, body, length, from_json, limit_bytes)
        if self._forward is not None:
            call = self._with_headers(call, request)
        if not self._allows_regions(is_local) and uses_regions(call):
            raise client_shm_disabled()
        return call

    async def _slowly(self, route: Route, request: HttpRequest, coding: str) -> Response:
        limit_bytes = self._plane.limits.input_bytes_max
        body: Buffer = request.body
        given = (request.header(_CODING) or "identity").strip().lower()
        if given in CODINGS:
            body = await _apart(len(body), partial(inflated, given, body, limit_bytes))
        elif given != "identity":
            accepts = (("Accept-Encoding", ", ".join(CODINGS)),)
            raise HttpError(501, f"Unsupported compression type: {given[:40]!r}", headers=accepts)
        if request.header(_LENGTH) == "0":
            json_length("0", len(body), limit_bytes)
            config = await self._plane.client.config(route.model, route.version)
            call = raw_call(route.model, route.version, body, config)
        else:
            call = self._call(route, request, body, False)
        response = response_of(call, await self._plane.infer(call))
        size = sum(len(part) for part in response.parts)
        if not coding or response.status != 200 or size < COMPRESSED_BYTES_MIN:
            return response
        packed = await _apart(size, partial(deflated, coding, response.parts))
        content_type = JSON_TYPE if response.json_length is None else BINARY_TYPE
        return response._replace(
            parts=[packed], headers=(("Content-Encoding", coding),), content_type=content_type
        )

    def _with_headers(self, call: InferCall, request: HttpRequest) -> InferCall:
        assert self._forward is not None
        parameters = dict(call.parameters)
        for name in request.headers:
            text = name.decode("latin-1")
            if self._forward.search(text):
                parameters[text] = request.header(name) or ""
        return call._replace(parameters=parameters)


def response_of(call: InferCall, outcome: InferAnswer | NaiadError) -> Response:
    """The response for a call's outcome; never raises."""
    if isinstance(outcome, NaiadError):
        return error_response(from_fault(outcome))
    try:
        body: Body = answer_body(call, outcome, to_json)
    except NaiadError as fault:
        return error_response(from_fault(fault))
    return Response(200, body.parts, body.json_length)


async def replied(connection: HttpConnection, work: Awaitable[Response]) -> None:
    """Await a response and send it; what went wrong becomes one."""
    try:
        response = await work
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

"""Every route but inference: asks the broker and writes what it says as JSON.

Owns who may use which route: what changes the server, and shared memory, is for this machine alone
unless the operator says otherwise, and never for a web page (a request with an Origin).
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final

from naiad.client.requests import Buffer
from naiad.gateway import http_routes
from naiad.gateway.access import Access, elsewhere
from naiad.gateway.calls import BodyPlace
from naiad.gateway.http_connection import HttpConnection, Work
from naiad.gateway.http_infer import Inference, InferPlan, replied
from naiad.gateway.http_message import (
    EMPTY,
    Head,
    HttpRequest,
    Response,
    error_response,
)
from naiad.gateway.http_parameters import (
    Json,
    flag_of,
    object_of,
    parsed_object,
    text_of,
    uint_of,
)
from naiad.gateway.http_request import checked_size
from naiad.gateway.http_routes import Route
from naiad.gateway.http_status import HttpError, from_fault
from naiad.gateway.json_documents import document_text
from naiad.gateway.large_load import load_parameters
from naiad.gateway.page.document import document
from naiad.gateway.page.watch import Watch
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane, RegionKind, client_shm_disabled
from naiad.gateway.restrictions import Restriction
from naiad.gateway.users import UserHeaders
from naiad.protocol.errors import Code, NaiadError, RequestError
from naiad.shm.cuda.key import HANDLE_BYTES

STATE: Final = "Naiad-State"
"""The header that tells a server that loads from one that is broken."""
LOG: Final = logging.getLogger("naiad.gateway")
PATHS_KNOWN_MAX: Final = 4096
"""Routes that are remembered by path; beyond, all are worked out again."""

_UNREAD: Final = frozenset({"generate", "trace"})
"""Refused whatever they say."""

Handler = Callable[[Route, Json], Awaitable[Response]]


class HttpApp:
    """From a request to its work. All of a process share `watch`."""

    def __init__(
        self,
        plane: Plane,
        phase: Phase,
        access: Access,
        watch: Watch,
        forward: str = "",
        restricted: Mapping[str, Restriction] | None = None,
        users: UserHeaders | None = None,
    ) -> None:
        self._phase = phase
        self._restricted = restricted or {}
        self._plane = plane
        self._access = access
        self._watch = watch
        self._inference = Inference(plane, access.allows_regions, forward, users)
        self._routes: dict[bytes, Route] = {}
        self._handlers: dict[str, Handler] = {
            "page": self._page,
            "page_state": self._page_state,
            "live": self._live,
            "ready": self._ready,
            "startup": self._startup,
            "server_metadata": self._server_metadata,
            "model_ready": self._model_ready,
            "model_metadata": self._model_metadata,
            "model_config": self._model_config,
            "statistics": self._statistics,
            "index": self._index,
            "unload": self._unload,
            "shm_status": self._shm_status,
            "shm_register": self._shm_register,
            "shm_unregister": self._shm_unregister,
            "generate": _unsupported("generate: streaming models are"),
            "logging": self._logging,
            "trace": _unsupported("tracing is"),
        }

    def handle(self, request: HttpRequest, connection: HttpConnection) -> Work | None:
        """Begin a request; the answer goes to the connection."""
        head = request.head
        if isinstance(head.plan, InferPlan) and self._phase.is_open:
            return self._inference.begin(head.plan, request, connection)
        try:
            route = self._routes.get(head.path)
            if route is None:
                route = self._route(head.path)
            self._check(route, request, connection.is_local)
            if route.name == "infer":
                plan = self._inference.plan(route, head)
                head.plan = plan
                return self._inference.begin(plan, request, connection)
            work = self._work(route, request)
        except HttpError as fault:
            connection.reply(error_response(fault))
            return None
        except NaiadError as fault:
            connection.reply(error_response(from_fault(fault)))
            return None
        LOG.debug("%s %s", head.method, head.path.decode("latin-1"))
        return asyncio.get_running_loop().create_task(replied(connection, work))

    def _work(self, route: Route, request: HttpRequest) -> Callable[[], Awaitable[Response]]:
        """What is to be awaited. Raises HttpError and RequestError."""
        if route.name == "load":
            return partial(self._load, route, self._content(route, request))
        return partial(self._handled, route, self._body(route, request))

    async def _handled(self, route: Route, given: Json) -> Response:
        if http_routes.CATEGORIES[route.name] != ("health",):
            await self._plane.turns.turn()
        return await self._handlers[route.name](route, given)

    def place(self, head: Head) -> BodyPlace | None:
        """Shared memory for the body of a large inference request."""
        route = self._routes.get(head.path)
        if route is None or route.name != "infer" or head.method != "POST":
            return None
        return self._inference.place(head)

    def _route(self, path: bytes) -> Route:
        found = http_routes.find(path)
        if len(self._routes) >= PATHS_KNOWN_MAX:
            self._routes.clear()
        self._routes[path] = found
        return found

    def _check(self, route: Route, request: HttpRequest, is_local: bool) -> None:
        """Raises HttpError when this request is not for here, or not now."""
        if request.head.method not in route.verbs:
            allow = (("Allow", ", ".join(route.verbs)),)
            raise HttpError(405, "Method Not Allowed", headers=allow)
        self._phase.check_open()
        name = route.name
        # Inference passes here once for each head, which has the header in it.
        headers = request.head.headers
        for category in http_routes.CATEGORIES[name]:
            restriction = self._restricted.get(category)
            if restriction is not None and not restriction.allows(headers.get(restriction.header)):
                text = f"This API is restricted, expecting header '{restriction.name}'"
                raise HttpError(403, text)
        is_shm = name in http_routes.LOCAL_SHM
        if (is_shm or name in http_routes.LOCAL_ONLY) and self._access.has_management_door:
            raise HttpError(403, elsewhere(name))
        if is_shm:
            if not self._access.allows_regions(is_local):
                raise from_fault(client_shm_disabled())
        elif name not in http_routes.LOCAL_ONLY:
            return
        elif not self._access.allows_management(is_local):
            raise HttpError(
                403, f"{name} is allowed from the server's own machine only; see --allow-management"
            )
        if request.head.method == "POST" and b"origin" in request.head.headers:
            raise HttpError(
                403, f"{name} is not allowed from web pages (the request has an Origin)"
            )

    def _content(self, route: Route, request: HttpRequest) -> Buffer:
        """What a request brings along that is not inference; b"" for what is not read."""
        if not request.body or request.head.method == "GET" or route.name in _UNREAD:
            return b""
        coding = request.head.header(b"content-encoding") or "identity"
        if coding.strip().lower() != "identity":
            raise HttpError(400, "Unsupported content-encoding, only 'identity' is supported.")
        return request.body

    def _body(self, route: Route, request: HttpRequest) -> Json:
        """The JSON object of a request that may have one; {} without a body."""
        limits = self._plane.limits
        content = self._content(route, request)
        if len(content) > limits.control_bytes_max:
            raise HttpError(
                413,
                f"the JSON of this request has {len(content)} bytes, expected at most"
                f" {limits.control_bytes_max}",
            )
        if not content:
            return {}
        body = bytes(content)
        values = body.count(b",") + body.count(b"[") + body.count(b"{")
        if values > limits.control_values_max:
            raise RequestError(
                f"the JSON of this request has up to {values} values, expected at most"
                f" {limits.control_values_max}"
            )
        return parsed_object(body)

    # --- for people ------------------------------------------------------------------------------

    async def _page(self, route: Route, given: Json) -> Response:
        return document()

    async def _page_state(self, route: Route, given: Json) -> Response:
        headers = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
        return Response(200, [await self._watch.state()], headers=headers)

    # --- health ----------------------------------------------------------------------------------

    async def _live(self, route: Route, given: Json) -> Response:
        if await self._plane.is_live():
            return EMPTY
        raise HttpError(503, "the broker does not answer")

    async def _ready(self, route: Route, given: Json) -> Response:
        if not self._phase.is_serving:
            raise HttpError(503, "Server exiting")
        found = await self._plane.readiness()
        if found.is_ready:
            return EMPTY
        raise HttpError(400, f"not ready, {found.text}", headers=((STATE, found.state),))

    async def _startup(self, route: Route, given: Json) -> Response:
        """For a startup probe: 200 once nothing of the start is on its way any more."""
        if not self._phase.is_serving:
            raise HttpError(503, "Server exiting")
        found = await self._plane.readiness()
        headers = ((STATE, found.state),)
        if found.is_started:
            return Response(200, [], headers=headers)
        raise HttpError(503, f"not started, {found.text}", headers=headers)

    async def _model_ready(self, route: Route, given: Json) -> Response:
        if self._phase.is_serving and await self._plane.is_model_ready(route.model, route.version):
            return EMPTY
        raise HttpError(400, "Model version not ready")

    # --- what there is ---------------------------------------------------------------------------

    async def _server_metadata(self, route: Route, given: Json) -> Response:
        return await self._shared(route, self._plane.client.metadata)

    async def _model_metadata(self, route: Route, given: Json) -> Response:
        ask = partial(self._plane.client.metadata, route.model, route.version)
        return await self._shared(route, ask)

    async def _model_config(self, route: Route, given: Json) -> Response:
        ask = partial(self._plane.client.config, route.model, route.version)
        return await self._shared(route, ask)

    async def _statistics(self, route: Route, given: Json) -> Response:
        ask = partial(self._plane.client.statistics, route.model, route.version)
        return await self._shared(route, ask)

    async def _shared(self, question: Hashable, ask: Callable[[], Awaitable[Any]]) -> Response:
        async def answer() -> Response:
            return await self._json(await ask())

        return await self._plane.shared.get(question, answer)

    async def _json(self, found: Any) -> Response:
        """What the broker told, which may be of hundreds of inputs, models or batch sizes."""
        return Response(200, [await self._plane.long_work.run(0, document_text(found))])

    # --- the repository --------------------------------------------------------------------------

    async def _index(self, route: Route, given: Json) -> Response:
        is_ready = flag_of(given, "ready")

        async def rows() -> list[Json]:
            found = await self._plane.client.index(ready=is_ready)
            # As in Triton, what there is nothing to say about is left out.
            return [{key: value for key, value in row.items() if value} for row in found]

        return await self._shared((route, is_ready), rows)

    async def _load(self, route: Route, body: Buffer) -> Response:
        """The bytes of a file come in base64."""
        await self._plane.turns.turn()
        parameters: Json = {}
        if body:
            limits = self._plane.limits
            checked_size("JSON", len(body), limits.input_bytes_max)
            steps = load_parameters(body, limits.load_config_bytes_max)
            parameters = await self._plane.long_work.run(len(body), steps)
        await self._plane.load(route.model, parameters)
        return EMPTY

    async def _unload(self, route: Route, given: Json) -> Response:
        dependents = flag_of(object_of(given, "parameters"), "unload_dependents")
        await self._plane.client.unload(route.model, unload_dependents=dependents)
        return EMPTY

    async def _logging(self, route: Route, given: Json) -> Response:
        """A POST changes what it names; null changes nothing, as in Triton."""
        changes = {name: value for name, value in given.items() if value is not None}
        return await self._json(await self._plane.log_settings(changes))

    # --- shared memory ---------------------------------------------------------------------------

    async def _shm_status(self, route: Route, given: Json) -> Response:
        return await self._json(await self._plane.region_status(route.region, _kind(route)))

    async def _shm_register(self, route: Route, given: Json) -> Response:
        if _kind(route) == "cuda":
            await self._plane.register_cuda_region(
                route.region,
                _handle(given),
                uint_of(given, "device_id"),
                uint_of(given, "byte_size"),
            )
            return EMPTY
        await self._plane.register_region(
            route.region,
            text_of(_with(given, "key"), "key"),
            uint_of(given, "offset"),
            uint_of(_with(given, "byte_size"), "byte_size"),
        )
        return EMPTY

    async def _shm_unregister(self, route: Route, given: Json) -> Response:
        await self._plane.unregister_region(route.region, _kind(route))
        return EMPTY


def _kind(route: Route) -> RegionKind:
    return "cuda" if route.kind == "cuda" else "system"


def _with(given: Json, field: str) -> Json:
    if field not in given:
        raise RequestError(f"Shared memory register request has no '{field}' field")
    return given


def _handle(given: Json) -> bytes:
    handle = object_of(_with(given, "raw_handle"), "raw_handle")
    try:
        found = base64.b64decode(text_of(handle, "b64"), validate=True)
    except ValueError:
        found = b""
    if len(found) != HANDLE_BYTES:
        raise RequestError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return found


def _unsupported(what: str) -> Handler:
    async def refuse(route: Route, given: Json) -> Response:
        raise RequestError(f"{what} not in this release", code=Code.UNSUPPORTED)

    return refuse

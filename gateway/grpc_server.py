"""The gRPC listener: the only module that knows the gRPC library.

Hands messages as bytes to the service, the streams and the health, and turns what they raise into
statuses. Cancelled and expired calls are cancelled by the library: their requests with them. Runs
in the event loop of the HTTP listener, beside it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio

from naiad.config.listening import UNIX_PREFIX, ListenFailed
from naiad.gateway.grpc_codec.reflection import reflected
from naiad.gateway.grpc_codec.status import STATUS_OF
from naiad.gateway.grpc_health import SERVICES, Health
from naiad.gateway.grpc_service import Access, Caller, Method, Service
from naiad.gateway.grpc_stream import Stream
from naiad.gateway.limits import Limits
from naiad.gateway.pending import unexpected
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.protocol.errors import NaiadError
from naiad.protocol.messages import Parameters

INFERENCE: Final = SERVICES[1]
HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1.ServerReflection",)
OLD_REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
SERVED: Final = (INFERENCE, HEALTH, *REFLECTION)

STATUS_WISH: Final = "triton_grpc_error"
"""Metadata of a stream whose caller wants errors as its status."""
CODE_KEY: Final = "naiad-code"
"""Trailing metadata of a failed call: naiad's own, finer code."""

DETAILS_BYTES_MAX: Final = 6000
"""Of a status text as it travels: clients refuse more than 8 KiB of trailing metadata."""
CALLS_BESIDE_MAX: Final = 1024
"""Calls that are no inference request in flight: streams, watchers, metadata."""
STREAMS_PER_CONNECTION_MAX: Final = 4096
REFLECTIONS_PER_STREAM_MAX: Final = 1000
POLL_SECONDS: Final = 0.02
"""Between two looks at what is still under way, at the end."""

_STATUS: Final = {code.value[0]: code for code in grpc.StatusCode}
T = TypeVar("T")
Context = Any
"""grpc.aio.ServicerContext, whose type is generic over messages that are bytes here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the listener listens. Times are Triton's defaults."""

    shares_port: bool = False
    """Several processes on one port (SO_REUSEPORT): the kernel spreads connections."""
    credentials: grpc.ServerCredentials | None = None
    """TLS, see grpc_tls; None: none."""
    header_pattern: str = ""
    """Metadata whose name matches becomes a parameter of the request (case is ignored)."""
    keepalive_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    ping_interval_ms_min: int = 300_000
    """Of pings of a client that sends nothing else."""
    ping_strikes_max: int = 2
    connection_age_ms_max: int | None = None


class GrpcServer:
    """One listener; `start` gives the port."""

    def __init__(
        self, plane: Plane, phase: Phase, access: Access, options: Options | None = None
    ) -> None:
        self._options = options or Options()
        self._access = access
        self._plane = plane
        self._phase = phase
        self._health = Health(plane, phase)
        self._service = Service(plane, phase)
        pattern = self._options.header_pattern
        self._header_pattern = re.compile(pattern, re.IGNORECASE) if pattern else None
        self._server: grpc.aio.Server | None = None
        self._calls = 0
        """Calls of one answer that are under way."""
        self._streams: set[Stream] = set()

    async def start(self, address: str, port: int) -> int:
        """Listen on an address ("unix:PATH" for a Unix socket); the port, which 0 leaves open.

        Raises ListenFailed.
        """
        limits = self._plane.limits
        server = grpc.aio.server(
            options=_channel_options(self._options, limits),
            maximum_concurrent_rpcs=limits.requests_in_flight_max + CALLS_BESIDE_MAX,
        )
        server.add_generic_rpc_handlers(self._handlers())
        port = self._listen(server, address, port)
        await server.start()
        self._server = server
        return port

    async def drain(self, grace_seconds: float, drain_seconds: float) -> bool:
        """End gently; False when something was still under way when the time was up.

        1. Not ready, and every watcher of the health is told; all is served through the grace.
        2. New calls and connections are refused. Calls are finished; streams answer what they have
           read and then end.
        3. When no call is under way any more, or the time is up, what is left is cancelled.
        """
        self._phase.leave()
        if grace_seconds:
            await asyncio.sleep(grace_seconds)
        self._phase.close()
        for stream in self._streams:
            stream.finish()
        loop = asyncio.get_running_loop()
        # The library cancels what is left when its time is up; here that is decided below.
        refusing = asyncio.create_task(self._refuse(2 * drain_seconds + 1))
        end = loop.time() + drain_seconds
        while (self._calls or self._streams) and loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
        was_busy = bool(self._calls or self._streams)
        await self.close()
        await refusing
        return not was_busy

    async def _refuse(self, seconds: float) -> None:
        if self._server is not None:
            await self._server.stop(seconds)

    async def close(self) -> None:
        """End now: what runs is cancelled."""
        if self._server is not None:
            await self._server.stop(None)

    @property
    def watcher_count(self) -> int:
        """Calls that wait for changes of the health."""
        return self._health.watcher_count

    def _listen(self, server: grpc.aio.Server, address: str, port: int) -> int:
        target = address
        if not address.startswith(UNIX_PREFIX):
            target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        try:
            if self._options.credentials is None:
                return server.add_insecure_port(target)
            return server.add_secure_port(target, self._options.credentials)
        except RuntimeError as fault:  # the library's words for it name its own source files
            raise ListenFailed(
                f"cannot listen on {target} for gRPC: it is taken by another program (another"
                " server?), or no address of this machine; choose another --grpc-port"
            ) from fault

    # --- methods ---------------------------------------------------------------------------------

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        inference = {name: self._unary(one, name) for name, one in self._service.methods.items()}
        inference["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        health: dict[str, Any] = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "List": grpc.unary_unary_rpc_method_handler(self._list),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        reflection: dict[str, Any] = {
            "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(self._reflect),
        }
        services: dict[str, Any] = {INFERENCE: inference, HEALTH: health}
        services |= dict.fromkeys((*REFLECTION, OLD_REFLECTION), reflection)
        return tuple(
            grpc.method_handlers_generic_handler(name, methods)
            for name, methods in services.items()
        )

    def _unary(self, method: Method, name: str) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def handle(data: bytes, context: Context) -> bytes:
            self._calls += 1
            try:
                return await _guarded(name, context, lambda: method(data, self._caller(context)))
            finally:
                self._calls -= 1

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        wishes = dict(context.invocation_metadata() or ())
        stream = Stream(
            self._plane,
            self._phase,
            self._caller(context),
            wants_status=wishes.get(STATUS_WISH) == "true",
        )
        self._streams.add(stream)
        try:
            await _guarded("ModelStreamInfer", context, lambda: stream.run(requests, context.write))
        finally:
            self._streams.discard(stream)

    async def _check(self, data: bytes, context: Context) -> bytes:
        return await _guarded("Check", context, self._health.check)

    async def _list(self, data: bytes, context: Context) -> bytes:
        return await _guarded("List", context, self._health.list)

    async def _watch(self, data: bytes, context: Context) -> None:
        await _guarded("Watch", context, lambda: self._health.watch(context.write))

    async def _reflect(self, requests: AsyncIterator[bytes], context: Context) -> None:
        async def run() -> None:
            count = 0
            async for data in requests:
                count += 1
                if count > REFLECTIONS_PER_STREAM_MAX:
                    return
                await context.write(reflected(data, SERVED))

        await _guarded("ServerReflectionInfo", context, run)

    # --- who asks --------------------------------------------------------------------------------

    def _caller(self, context: Context) -> Caller:
        forwarded = None
        if self._header_pattern is not None:
            forwarded = _forwarded(context.invocation_metadata() or (), self._header_pattern)
        is_local = is_local_peer(context.peer())
        return Caller(
            self._access.allows_regions(is_local),
            self._access.allows_management(is_local),
            context.time_remaining(),
            forwarded,
        )


def is_local_peer(peer: str) -> bool:
    """Whether gRPC's name of a peer is this machine's loopback interface or a Unix socket."""
    kind, _, rest = peer.partition(":")
    if kind == "ipv4":
        return rest.startswith("127.")
    if kind == "ipv6":
        host = rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")[0].strip("[]")
        return host == "::1" or host.lower().startswith("::ffff:127.")
    return kind == "unix"


def _forwarded(metadata: Any, pattern: re.Pattern[str]) -> Parameters | None:
    found: Parameters = {}
    for key, value in metadata:
        if isinstance(value, str) and pattern.search(key):
            found[key] = value
    return found or None


async def _guarded(name: str, context: Context, work: Callable[[], Awaitable[T]]) -> T:
    """What the work returns; what it raises becomes the call's status."""
    try:
        return await work()
    except NaiadError as fault:
        error = fault
    except (asyncio.CancelledError, grpc.aio.BaseError):
        raise  # nobody listens any more
    except Exception:
        error = unexpected(name)
    context.set_trailing_metadata(((CODE_KEY, str(error.code)),))
    await context.abort(_STATUS[STATUS_OF[error.code]], details(error.message))
    raise AssertionError("abort raises")


def details(message: str) -> str:
    """A text short enough to travel as the message of a status."""
    if len(message) * 12 > DETAILS_BYTES_MAX:  # one character may become four bytes of three each
        while len(quote(message, safe=_UNQUOTED, errors="replace")) > DETAILS_BYTES_MAX:
            message = message[: len(message) * 4 // 5]
    return message


_UNQUOTED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def _channel_options(options: Options, limits: Limits) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [
        ("grpc.so_reuseport", int(options.shares_port)),
        ("grpc.max_receive_message_length", limits.body_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
        ("grpc.keepalive_time_ms", options.keepalive_ms),
        ("grpc.keepalive_timeout_ms", options.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 2),
        ("grpc.http2.min_ping_interval_without_data_ms", options.ping_interval_ms_min),
        ("grpc.http2.max_ping_strikes", options.ping_strikes_max),
    ]
    if options.connection_age_ms_max is not None:
        found.append(("grpc.max_connection_age_ms", options.connection_age_ms_max))
    return found

"""The gRPC listener of a gateway process: sockets, connections, methods, the end.

The order of an end, after `drain`:
 1. Not ready, and every watcher of the health is told; everything is served through the grace.
 2. Nothing new is accepted, and clients are told to make no further calls here. Calls are finished;
    streams answer what they have read and then end.
 3. When no call is under way any more, or the time is up, what is left is closed.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from naiad.config.listening import BACKLOG
from naiad.gateway.grpc_call import ManyRequestsCall, OneRequestCall
from naiad.gateway.grpc_codec.head import Head
from naiad.gateway.grpc_codec.reflection import reflected
from naiad.gateway.grpc_connection import GrpcConnection, Method
from naiad.gateway.grpc_health import SERVICES, Health
from naiad.gateway.grpc_service import Access, Caller, Service
from naiad.gateway.grpc_stream import Stream
from naiad.gateway.limits import Limits
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.protocol.messages import Parameters

INFERENCE: Final = SERVICES[1]
HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1.ServerReflection"
OLD_REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
SERVED: Final = (INFERENCE, HEALTH, REFLECTION)

STATUS_WISH: Final = (b"triton_grpc_error", b"true")
"""Metadata of a stream whose caller wants errors as its status."""
REFLECTIONS_PER_STREAM_MAX: Final = 1000
CHECK_SECONDS: Final = 1.0
"""Between two looks at silent clients."""
CLOSE_SECONDS: Final = 1.0
"""For clients to take what was written to them last."""
POLL_SECONDS: Final = 0.02
"""Between two looks at what is still under way, at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How it listens."""

    tls: ssl.SSLContext | None = None
    """See grpc_tls."""
    header_pattern: str = ""
    """Metadata whose name matches becomes a parameter of the request (case is ignored)."""


class GrpcServer:
    """`start`, `drain`, `close`. Takes over the sockets, which listen already."""

    def __init__(
        self,
        plane: Plane,
        phase: Phase,
        access: Access,
        sockets: Sequence[socket.socket],
        options: Options | None = None,
    ) -> None:
        self.plane = plane
        self.service = Service(plane, phase)
        self.connections: set[GrpcConnection] = set()
        self.is_closing = False
        self._options = options or Options()
        self._phase = phase
        self._access = access
        self._health = Health(plane, phase)
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._check: asyncio.TimerHandle | None = None
        self._streams: set[Stream] = set()
        pattern = self._options.header_pattern
        self._header_pattern = re.compile(pattern, re.IGNORECASE) if pattern else None
        self._methods = self._table()

    @property
    def limits(self) -> Limits:
        return self.plane.limits

    @property
    def watcher_count(self) -> int:
        """Calls that wait for changes of the health."""
        return self._health.watcher_count

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            server = await loop.create_server(
                lambda: GrpcConnection(self, loop), sock=one, backlog=BACKLOG, ssl=self._options.tls
            )
            self._servers.append(server)
        self._check = loop.call_later(CHECK_SECONDS, self._check_time)

    async def drain(self, grace_seconds: float, drain_seconds: float) -> bool:
        """End gently; False when something was still under way when the time was up."""
        loop = asyncio.get_running_loop()
        self._phase.leave()
        if grace_seconds:
            await asyncio.sleep(grace_seconds)
        self._phase.close()
        self.is_closing = True
        self._stop_accepting()
        for connection in tuple(self.connections):
            connection.leave()
        for stream in self._streams:
            stream.finish()
        end = loop.time() + drain_seconds
        while self._is_busy() and loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
        was_busy = self._is_busy()
        for connection in tuple(self.connections):
            connection.close()
        end = loop.time() + CLOSE_SECONDS
        while self.connections and loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
        self.close()
        return not was_busy

    def _is_busy(self) -> bool:
        """Whether a call is under way that ends by itself. Watching the health does not."""
        calls = sum(len(one.calls) for one in self.connections)
        return calls > self._health.watcher_count

    def _stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def close(self) -> None:
        """End now: what runs is cancelled."""
        self._stop_accepting()
        if self._check is not None:
            self._check.cancel()
        for connection in tuple(self.connections):
            connection.abort()

    def _check_time(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self.connections):
            connection.check_time(now)
        self._check = loop.call_later(CHECK_SECONDS, self._check_time)

    # --- methods ---------------------------------------------------------------------------------

    def method(self, path: bytes) -> Method | None:
        """What is served at a path such as b"/inference.GRPCInferenceService/ModelInfer"."""
        return self._methods.get(path)

    def _table(self) -> dict[bytes, Method]:
        found: dict[bytes, Method] = {}

        def add(service: str, method: Method) -> None:
            found[f"/{service}/{method.name}".encode()] = method

        for name, work in self.service.methods.items():
            is_inference = name == "ModelInfer"
            add(INFERENCE, Method(name, is_inference, one=partial(_answered, work)))
        add(INFERENCE, Method("ModelStreamInfer", many=self._stream))
        add(HEALTH, Method("Check", one=self._check_health))
        add(HEALTH, Method("List", one=self._list_health))
        add(HEALTH, Method("Watch", one=self._watch_health))
        for service in (REFLECTION, OLD_REFLECTION):
            add(service, Method("ServerReflectionInfo", many=_reflect))
        return found

    async def _stream(self, call: ManyRequestsCall) -> None:
        wants_status = STATUS_WISH in call.head.metadata
        stream = Stream(self.plane, self._phase, call.caller, wants_status=wants_status)
        self._streams.add(stream)
        try:
            await stream.run(call, call.write)
        finally:
            self._streams.discard(stream)

    async def _check_health(self, request: bytes, call: OneRequestCall) -> None:
        call.send(await self._health.check())

    async def _list_health(self, request: bytes, call: OneRequestCall) -> None:
        call.send(await self._health.list())

    async def _watch_health(self, request: bytes, call: OneRequestCall) -> None:
        async def write(message: bytes) -> None:
            call.send(message)

        await self._health.watch(write)

    # --- who asks --------------------------------------------------------------------------------

    def caller(self, is_local: bool, head: Head) -> Caller:
        """What a connection's client may do, and what it sends along."""
        return Caller(
            self._access.allows_regions(is_local),
            self._access.allows_management(is_local),
            None,
            self._forwarded(head) if self._header_pattern is not None else None,
        )

    def _forwarded(self, head: Head) -> Parameters | None:
        assert self._header_pattern is not None
        found: Parameters = {}
        for name, value in head.metadata:
            text = name.decode("latin-1")
            if not text.endswith("-bin") and self._header_pattern.search(text):
                found[text] = value.decode("latin-1")
        return found or None


async def _answered(
    work: Callable[[bytes, Caller], Awaitable[bytes]], request: bytes, call: OneRequestCall
) -> None:
    call.send(await work(request, call.caller))


async def _reflect(call: ManyRequestsCall) -> None:
    count = 0
    async for request in call:
        count += 1
        if count > REFLECTIONS_PER_STREAM_MAX:
            return
        await call.write(reflected(request, SERVED))

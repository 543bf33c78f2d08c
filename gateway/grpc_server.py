"""The gRPC server of one gateway process: its methods, and what its connections share.

At the end, watchers of the health are told first; streams answer what they have read and then end.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from naiad.client.requests import Buffer
from naiad.gateway.access import Access
from naiad.gateway.grpc_codec import reflection
from naiad.gateway.grpc_codec.head import Head
from naiad.gateway.grpc_connection import GrpcConnection
from naiad.gateway.grpc_health import SERVICES, Health
from naiad.gateway.grpc_many_requests import ManyRequestsCall
from naiad.gateway.grpc_method import Method
from naiad.gateway.grpc_one_request import OneRequestCall
from naiad.gateway.grpc_service import Caller, Service
from naiad.gateway.grpc_service import Method as ServiceMethod
from naiad.gateway.grpc_stream import Stream
from naiad.gateway.listener import Listener
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.gateway.restrictions import Restriction
from naiad.gateway.users import UserHeaders
from naiad.protocol.messages import Parameters

INFERENCE: Final = SERVICES[1]
LOG: Final = logging.getLogger("naiad.gateway")
HEALTH: Final = "grpc.health.v1.Health"
REFLECTIONS: Final = (reflection.SERVICE, reflection.OLD_SERVICE)
SERVED: Final = (INFERENCE, HEALTH, *REFLECTIONS)

CATEGORIES: Final[dict[str, str]] = {
    "ServerLive": "health",
    "ServerReady": "health",
    "ModelReady": "health",
    "ServerMetadata": "metadata",
    "ModelMetadata": "metadata",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "model-config",
    "ModelStatistics": "statistics",
    "RepositoryIndex": "model-repository",
    "RepositoryModelLoad": "model-repository",
    "RepositoryModelUnload": "model-repository",
    "SystemSharedMemoryStatus": "shared-memory",
    "SystemSharedMemoryRegister": "shared-memory",
    "SystemSharedMemoryUnregister": "shared-memory",
    "CudaSharedMemoryStatus": "shared-memory",
    "CudaSharedMemoryRegister": "shared-memory",
    "CudaSharedMemoryUnregister": "shared-memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}
"""Of methods, as far as they can be restricted to who knows a secret: Triton's groups."""

MANAGEMENT: Final = frozenset({"model-repository", "shared-memory", "trace", "logging"})

LARGE: Final = frozenset({"ModelInfer", "ModelStreamInfer", "RepositoryModelLoad"})
"""Methods with large messages. Those of all others are read at once."""

STATUS_WISH: Final = (b"triton_grpc_error", b"true")
"""Metadata of a stream whose caller wants errors as its status."""
REFLECTIONS_PER_STREAM_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How it listens."""

    tls: ssl.SSLContext | None = None
    """See TlsFiles."""
    header_pattern: str = ""
    """Metadata whose name matches becomes a parameter of the request (case is ignored)."""
    restricted: Mapping[str, Restriction] = field(default_factory=dict)
    """By category."""
    users: UserHeaders = field(default_factory=UserHeaders)


class GrpcServer(Listener[GrpcConnection]):
    """The house of its connections; see Listener."""

    def __init__(
        self,
        plane: Plane,
        phase: Phase,
        access: Access,
        sockets: Sequence[socket.socket],
        options: Options | None = None,
    ) -> None:
        options = options or Options()
        super().__init__(phase, plane.limits, sockets, options.tls)
        self.plane = plane
        self.service = Service(plane, phase)
        self._access = access
        self._health = Health(plane, phase)
        self._streams: set[Stream] = set()
        pattern = options.header_pattern
        self._header_pattern = re.compile(pattern, re.IGNORECASE) if pattern else None
        self._users = options.users
        self._methods = self._table(options.restricted)

    @property
    def watcher_count(self) -> int:
        """Calls that wait for changes of the health."""
        return self._health.watcher_count

    # --- connections ------------------------------------------------------------------------------

    def _connection(self, loop: asyncio.AbstractEventLoop) -> GrpcConnection:
        return GrpcConnection(self, loop)

    def _leave(self) -> None:
        super()._leave()
        for stream in self._streams:
            stream.finish()

    def _is_busy(self) -> bool:
        """Watching the health does not end by itself."""
        calls = sum(len(one.calls) for one in self.connections)
        is_owing = any(one.http2.unsent_bytes for one in self.connections)
        return is_owing or calls > self._health.watcher_count

    def _is_parting(self) -> bool:
        now = asyncio.get_running_loop().time()
        return any(one.is_parting(now) for one in self.connections)

    # --- methods ---------------------------------------------------------------------------------

    def method(self, path: bytes) -> Method | None:
        """What is served at a path such as b"/inference.GRPCInferenceService/ModelInfer"."""
        return self._methods.get(path)

    def _table(self, restricted: Mapping[str, Restriction]) -> dict[bytes, Method]:
        found: dict[bytes, Method] = {}

        def add(service: str, method: Method) -> None:
            category = "health" if service == HEALTH else CATEGORIES.get(method.name, "")
            is_elsewhere = category in MANAGEMENT and self._access.has_management_door
            is_elsewhere &= method.name != "RepositoryIndex"  # tells, and changes nothing
            method = method._replace(
                restriction=restricted.get(category), is_elsewhere=is_elsewhere
            )
            found[f"/{service}/{method.name}".encode()] = method

        large, small = self.limits.body_bytes_max, self.limits.control_bytes_max
        for name, work in self.service.methods.items():
            is_inference = name == "ModelInfer"
            told = "" if is_inference else name
            size = large if name in LARGE else small
            one = partial(self._answered, work, told)
            add(INFERENCE, Method(name, size, is_inference, one=one))
        add(INFERENCE, Method("ModelStreamInfer", large, many=self._stream))
        add(HEALTH, Method("Check", small, one=self._check_health))
        add(HEALTH, Method("List", small, one=self._list_health))
        add(HEALTH, Method("Watch", small, one=self._watch_health))
        for service in REFLECTIONS:
            add(service, Method("ServerReflectionInfo", small, many=_reflect))
        return found

    async def _stream(self, call: ManyRequestsCall) -> None:
        wants_status = STATUS_WISH in call.head.metadata
        stream = Stream(self.plane, self.phase, call.caller, wants_status=wants_status)
        self._streams.add(stream)
        try:
            await stream.run(call, call.write)
        finally:
            self._streams.discard(stream)

    async def _answered(
        self,
        work: ServiceMethod,
        told: str,
        request: Buffer,
        call: OneRequestCall,
    ) -> None:
        """`told` is what a verbose log says; nothing of inference."""
        self.phase.check_open()
        if told:
            LOG.debug("gRPC %s", told)
            if CATEGORIES[told] != "health":
                await self.plane.turns.turn()
        message = await work(request, call.caller)
        call.send(*(message if isinstance(message, list) else (message,)))

    async def _check_health(self, request: Buffer, call: OneRequestCall) -> None:
        call.send(await self._health.check(bytes(request)))

    async def _list_health(self, request: Buffer, call: OneRequestCall) -> None:
        call.send(await self._health.list())

    async def _watch_health(self, request: Buffer, call: OneRequestCall) -> None:
        async def write(message: bytes) -> None:
            call.send(message)

        await self._health.watch(write)

    # --- who asks --------------------------------------------------------------------------------

    def caller(self, is_local: bool, head: Head) -> Caller:
        """What a connection's client may do, and what it sends along.

        Raises RequestError for a header with a user's name that is none.
        """
        return Caller(
            self._access.allows_regions(is_local),
            self._access.allows_management(is_local),
            None,
            self._forwarded(head) if self._header_pattern is not None else None,
            self._users.user(head.only),
        )

    def _forwarded(self, head: Head) -> Parameters | None:
        assert self._header_pattern is not None
        found: Parameters = {}
        for name, value in head.metadata:
            text = name.decode("latin-1")
            if not text.endswith("-bin") and self._header_pattern.search(text):
                found[text] = value.decode("latin-1")
        return found or None


async def _reflect(call: ManyRequestsCall) -> None:
    count = 0
    async for request in call:
        count += 1
        if count > REFLECTIONS_PER_STREAM_MAX:
            return
        await call.write(reflection.reflected(bytes(request), SERVED))

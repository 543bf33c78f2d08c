"""grpc.health.v1: readiness for gRPC's own probes. Triton's Check, and Watch, which it lacks.

As in Triton the name of a service in a question is ignored: there is one server, and it is ready or
not. But for "startup": that is SERVING once every model of the start is ready or has failed.
One poll of the broker serves every watcher; without watchers there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from google.protobuf.message import DecodeError

from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.gateway.proto import health_pb2 as pb
from naiad.protocol.errors import Code, RequestError, Unavailable

POLL_SECONDS: Final = 0.25
"""How old the answer of a watcher is at most, and the time that the broker takes."""
WATCHERS_MAX: Final = 256

STARTUP: Final = "startup"
"""For probes that shall tell a server that loads from one that is broken."""
SERVICES: Final = ("", "inference.GRPCInferenceService")

Write = Callable[[bytes], Awaitable[None]]


class Health:
    """Whether this gateway and the server behind it are ready."""

    def __init__(self, plane: Plane, phase: Phase) -> None:
        self._plane = plane
        self._phase = phase
        self._watchers: set[asyncio.Queue[bool]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._last: bool | None = None

    @property
    def watcher_count(self) -> int:
        return len(self._watchers)

    async def check(self, request: bytes) -> bytes:
        """HealthCheckResponse: SERVING or NOT_SERVING."""
        try:
            service = pb.HealthCheckRequest.FromString(request).service
        except DecodeError as fault:
            raise RequestError("the request is not a HealthCheckRequest") from fault
        if service == STARTUP:
            return _response(await self._is_started())
        return _response(await self._is_ready())

    async def list(self) -> bytes:
        """HealthListResponse."""
        status = pb.HealthCheckResponse.FromString(_response(await self._is_ready()))
        found = pb.HealthListResponse()
        for name in SERVICES:
            found.statuses[name].CopyFrom(status)
        started = pb.HealthCheckResponse.FromString(_response(await self._is_started()))
        found.statuses[STARTUP].CopyFrom(started)
        serialised: bytes = found.SerializeToString()
        return serialised

    async def watch(self, write: Write) -> None:
        """Write the state now and at every change, until cancelled.

        Raises Unavailable (budget_exceeded) when WATCHERS_MAX watch.
        """
        if len(self._watchers) >= WATCHERS_MAX:
            raise Unavailable(
                f"{len(self._watchers)} watchers of the health, at most {WATCHERS_MAX}; use Check",
                code=Code.BUDGET_EXCEEDED,
            )
        changes: asyncio.Queue[bool] = asyncio.Queue(1)
        self._watchers.add(changes)
        try:
            if self._polling is None:
                self._last = None
                self._polling = asyncio.create_task(self._poll())
            elif self._last is not None:
                changes.put_nowait(self._last)
            while True:
                await write(_response(await changes.get()))
        finally:
            self._watchers.discard(changes)
            if not self._watchers and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll(self) -> None:
        while True:
            is_ready = await self._is_ready()
            if is_ready is not self._last:
                self._last = is_ready
                for changes in self._watchers:
                    if changes.full():  # a slow watcher is told the newest state only
                        changes.get_nowait()
                    changes.put_nowait(is_ready)
            await asyncio.sleep(POLL_SECONDS)

    async def _is_started(self) -> bool:
        return self._phase.is_serving and (await self._plane.readiness()).is_started

    async def _is_ready(self) -> bool:
        return self._phase.is_serving and await self._plane.is_ready()


def _response(is_ready: bool) -> bytes:
    kind = pb.HealthCheckResponse
    serialised: bytes = kind(
        status=kind.SERVING if is_ready else kind.NOT_SERVING
    ).SerializeToString()
    return serialised

"""The HTTP server of one gateway process: listening sockets, connections, the end.

The order of an end, after `drain`:
 1. `ready` answers 503; everything else is served through the grace period.
 2. Nothing new is accepted; idle connections are closed, the others behind their next answer;
    every new request is answered with 503.
 3. When nothing is under way any more, or the time is up, what is left is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from naiad.config.listening import BACKLOG
from naiad.gateway.http_app import HttpApp
from naiad.gateway.http_connection import HttpConnection, Work
from naiad.gateway.http_message import BodyPlace, Head, HttpRequest
from naiad.gateway.http_reader import READ_BYTES, KnownHeads
from naiad.gateway.limits import Limits
from naiad.gateway.plane import Plane

CHECK_SECONDS: Final = 1.0
"""Between two looks at slow clients."""
POLL_SECONDS: Final = 0.02
"""Between two looks at what is still under way, at the end."""


class HttpServer:
    """`start`, `drain`, `close`. Takes over the sockets, which listen already."""

    def __init__(self, plane: Plane, app: HttpApp, sockets: Sequence[socket.socket]) -> None:
        self.limits: Limits = plane.limits
        self.budget = plane.budget
        self.read_buffer = bytearray(READ_BYTES)
        self.known_heads = KnownHeads()
        self.connections: set[HttpConnection] = set()
        self.is_closing = False
        self._app = app
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._check: asyncio.TimerHandle | None = None

    def handle(self, request: HttpRequest, connection: HttpConnection) -> Work | None:
        return self._app.handle(request, connection)

    def place(self, head: Head) -> BodyPlace | None:
        return self._app.place(head)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            server = await loop.create_server(
                lambda: HttpConnection(self, loop), sock=one, backlog=BACKLOG
            )
            self._servers.append(server)
        self._check = loop.call_later(CHECK_SECONDS, self._check_time)

    def _check_time(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self.connections):
            connection.check_time(now)
        self._check = loop.call_later(CHECK_SECONDS, self._check_time)

    async def drain(self, grace_seconds: float, drain_seconds: float) -> bool:
        """End gently; False when something was still under way when the time was up."""
        loop = asyncio.get_running_loop()
        self._app.is_ready = False
        if grace_seconds:
            await asyncio.sleep(grace_seconds)
        self._app.is_exiting = True
        self.is_closing = True
        self._stop_accepting()
        end = loop.time() + drain_seconds
        while self.connections and loop.time() < end:
            for connection in tuple(self.connections):
                connection.close_idle()
            if not any(one.is_busy for one in self.connections):
                break
            await asyncio.sleep(POLL_SECONDS)
        was_busy = any(one.is_busy for one in self.connections)
        self.close()
        return not was_busy

    def _stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def close(self) -> None:
        """End now."""
        self._stop_accepting()
        if self._check is not None:
            self._check.cancel()
        for connection in tuple(self.connections):
            connection.abort()

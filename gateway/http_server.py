"""The HTTP server of one gateway process: what its connections share, and the way to the routes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence

from naiad.gateway.http_app import HttpApp
from naiad.gateway.http_connection import HttpConnection
from naiad.gateway.http_known_heads import KnownHeads
from naiad.gateway.limits import READ_BYTES
from naiad.gateway.listener import Listener
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane


class HttpServer(Listener[HttpConnection]):
    """The door of its connections; see Listener."""

    def __init__(
        self,
        plane: Plane,
        phase: Phase,
        app: HttpApp,
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(phase, plane.limits, sockets, tls)
        self.budget = plane.budget
        self.turns = plane.turns
        self.read_buffer = bytearray(READ_BYTES)
        self.known_heads = KnownHeads()
        self.handle = app.handle
        self.place = app.place

    def _connection(self, loop: asyncio.AbstractEventLoop) -> HttpConnection:
        return HttpConnection(self, loop)

    def _is_busy(self) -> bool:
        return any(one.is_busy for one in self.connections)

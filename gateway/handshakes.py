"""Accepting connections that begin with a TLS handshake: only what has finished one goes on.

Event loops accept without a limit, and a client that never finishes its handshake would hold memory
that nobody counts. Here handshakes are counted, and the oldest makes room.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from naiad.config.listening import BACKLOG
from naiad.gateway.limits import Limits

LOG: Final = logging.getLogger("naiad.gateway")
TLS_CLOSE_SECONDS: Final = 3600.0
"""From a close to its end, in which a slow client takes the rest of its answer. What ends those
that take nothing is their own connection (`check_time`), long before."""
ACCEPT_AGAIN_SECONDS: Final = 0.5
"""After the system had no descriptor or memory left for a connection."""


class Handshakes:
    """`start`, `close`: one listening socket, whose connections are made by `make`."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        limits: Limits,
    ) -> None:
        self._listening = listening
        self._context = context
        self._make = make
        self._limits = limits
        self._running: dict[asyncio.Task[None], None] = {}
        """Oldest first."""
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept nothing more; what has not finished its handshake ends."""
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting.add_done_callback(lambda _: self._listening.close())
            self._accepting = None
        for task in self._running:
            task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as fault:
                LOG.warning("cannot accept a connection: %s", fault.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            if len(self._running) >= self._limits.handshakes_max:
                next(iter(self._running)).cancel()
            task = loop.create_task(self._shake_hands(accepted))
            self._running[task] = None
            task.add_done_callback(self._ended)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.handshake_seconds,
                ssl_shutdown_timeout=TLS_CLOSE_SECONDS,
            )
        except OSError as fault:  # ssl's errors, and TimeoutError, are of this kind
            LOG.debug("a TLS handshake failed: %s", fault)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            LOG.error("a TLS handshake failed inside the gateway", exc_info=task.exception())

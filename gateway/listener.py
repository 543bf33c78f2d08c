"""What HTTP and gRPC share of a server: listening sockets, a set of connections, the end.

The order of an end (`end`), after SIGTERM:
 1. Not ready: probes and load balancers are told. Everything is served through the grace period.
    A port that is shared with other processes is left to them, and clients are sent there.
 2. Nothing new is accepted or begun; clients are told to come no more; what runs is finished.
    What they began before they knew is refused by name, where they can say when they know (gRPC).
 3. When nothing is under way any more, or the time is up, connections are closed, and cut off when
    their clients do not take the last of what was written to them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from naiad.config.listening import BACKLOG
from naiad.config.shared_port import LEAVE_SECONDS, is_shared
from naiad.gateway.handshakes import Handshakes
from naiad.gateway.limits import Limits
from naiad.gateway.phase import Phase

LOG: Final = logging.getLogger("naiad.gateway")
CHECK_SECONDS: Final = 1.0
"""Between two looks at slow clients."""
CHECKED_AT_ONCE: Final = 100
"""Connections, in one iteration of the loop: 3,600 took 12 to 20 ms."""
POLL_SECONDS: Final = 0.02
"""Between two looks at what is still under way, at the end."""
CLOSE_SECONDS: Final = 1.0
"""For clients to take what was written to them last."""


class ServerConnection(Protocol):
    """What a listener needs of its connections, which enter and leave `connections` themselves."""

    def check_time(self, now: float) -> None:
        """End the connection if its client is too slow; called every CHECK_SECONDS."""

    def go_elsewhere(self) -> None:
        """Tell the client to make its next connection, if it can be told between requests."""

    def leave(self) -> None:
        """Take no further requests; close once there is none. Called again and again."""

    def close(self) -> None:
        """Close behind what was written."""

    def abort(self) -> None:
        """Close now: what runs is cancelled."""


C = TypeVar("C", bound=ServerConnection)


class Listener(ABC, Generic[C]):
    """`start`, `drain`, `close`. Takes over the sockets, which listen already.

    A subclass makes the connections (`_connection`) and says whether anything runs (`_is_busy`).
    """

    def __init__(
        self,
        phase: Phase,
        limits: Limits,
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.phase = phase
        self.limits = limits
        self.connections: set[C] = set()
        self.is_leaving = False
        """A port that others share: clients are to connect again, and will find them."""
        self._sockets = sockets
        self._tls = tls
        self._servers: list[asyncio.Server | Handshakes] = []
        self._check: asyncio.Handle | None = None

    @abstractmethod
    def _connection(self, loop: asyncio.AbstractEventLoop) -> asyncio.BaseProtocol:
        """What serves one connection."""

    @abstractmethod
    def _is_busy(self) -> bool:
        """Whether something is under way that ends by itself."""

    def _is_parting(self) -> bool:
        """Whether clients are waited for, a moment, that may not have read a goodbye."""
        return False

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            self._servers.append(await self._listen(one, loop))
        self._begin_check(loop)

    async def _listen(
        self, one: socket.socket, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Server | Handshakes:
        make = partial(self._connection, loop)
        if self._tls is None:
            return await loop.create_server(make, sock=one, backlog=BACKLOG)
        handshakes = Handshakes(one, self._tls, make, self.limits)
        handshakes.start()
        return handshakes

    def _begin_check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check_time(loop, tuple(self.connections))

    def _check_time(self, loop: asyncio.AbstractEventLoop, waiting: tuple[C, ...]) -> None:
        now = loop.time()
        self._each(lambda one: one.check_time(now), waiting[:CHECKED_AT_ONCE])
        left = waiting[CHECKED_AT_ONCE:]
        if left:
            self._check = loop.call_soon(self._check_time, loop, left)
        else:
            self._check = loop.call_later(CHECK_SECONDS, self._begin_check, loop)

    def _each(self, act: Callable[[C], None], some: Sequence[C] | None = None) -> None:
        """With these connections, else with all. One that fails is cut off: the others have their
        turn all the same, and so has the next time."""
        for connection in tuple(self.connections) if some is None else some:
            try:
                act(connection)
            except Exception:
                LOG.exception("a connection failed inside the gateway")
                connection.abort()

    def leave_port(self) -> bool:
        """Send clients elsewhere, if the port is shared with others; whether it is.

        That nobody new is let in is for the owner of the sockets to do: siblings may go on.
        """
        self.is_leaving = any(is_shared(one) for one in self._sockets)
        if self.is_leaving:
            self._each(lambda one: one.go_elsewhere())
        return self.is_leaving

    def close_shared(self) -> None:
        """Accept nothing more where others do."""
        if self.is_leaving:
            self._stop_accepting()

    async def drain(self, drain_seconds: float) -> bool:
        """Finish what runs, take nothing new; False when something still ran at the end of time."""
        loop = asyncio.get_running_loop()
        self._stop_accepting()
        self._leave()
        end = loop.time() + drain_seconds
        while (self._is_busy() or self._is_parting()) and loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
            self._leave()
        was_busy = self._is_busy()
        self._each(lambda one: one.close())
        end = loop.time() + CLOSE_SECONDS
        while self.connections and loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
        self.close()
        return not was_busy

    def _leave(self) -> None:
        self._each(lambda one: one.leave())

    def _stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def close(self) -> None:
        """End now: what runs is cancelled."""
        self._stop_accepting()
        if self._check is not None:
            self._check.cancel()
        self._each(lambda one: one.abort())


async def end(
    phase: Phase, listeners: Sequence[Listener[Any]], grace_seconds: float, drain_seconds: float
) -> bool:
    """End gently, all together; False when something still ran when the time was up."""
    phase.leave()
    are_shared = [one.leave_port() for one in listeners]
    if any(are_shared):
        await asyncio.sleep(LEAVE_SECONDS)
        for one in listeners:
            one.close_shared()
        grace_seconds = max(0.0, grace_seconds - LEAVE_SECONDS)
    await asyncio.sleep(grace_seconds)
    phase.close()
    results = await asyncio.gather(*(one.drain(drain_seconds) for one in listeners))
    return all(results)

"""The gRPC listener in a thread of the test's own process, before a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import uvloop

from naiad.client.aio import AsyncClient
from naiad.config.listening import UNIX_PREFIX, listening
from naiad.gateway.access import Access
from naiad.gateway.grpc_server import GrpcServer, Options
from naiad.gateway.limits import Limits
from naiad.gateway.listener import end
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane

START_SECONDS: Final = 10.0
STOP_SECONDS: Final = 10.0


class Listener:
    """A listener on a free port or a Unix socket; `plane` and `phase` belong to its thread."""

    def __init__(
        self,
        run_dir: Path,
        *,
        options: Options | None = None,
        limits: Limits | None = None,
        access: Access | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = 0
        self._address = address
        self.call(self._start(run_dir, options, limits or Limits(), access or Access()))

    @property
    def target(self) -> str:
        if self._address.startswith("unix:"):
            return self._address
        return f"{self._address}:{self.port}"

    async def _start(
        self, run_dir: Path, options: Options | None, limits: Limits, access: Access
    ) -> None:
        client = AsyncClient(run_dir, role="gateway", on_full="raise")
        self.plane = Plane(client, limits)
        self.phase = Phase()
        one = listening(self._address, 0, what="port")
        if not self._address.startswith(UNIX_PREFIX):
            self.port = one.getsockname()[1]
        self.server = GrpcServer(self.plane, self.phase, access, [one], options)
        await self.server.start()

    def call(self, work: Coroutine[Any, Any, Any], seconds: float = START_SECONDS) -> Any:
        """Run something in the listener's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    async def end(self, grace_seconds: float, drain_seconds: float) -> bool:
        """As at SIGTERM; whether everything was finished in time."""
        return await end(self.phase, (self.server,), grace_seconds, drain_seconds)

    def close(self) -> None:
        """Stop it and check that nothing was forgotten."""
        self._loop.call_soon_threadsafe(self.server.close)
        self.call(self._settled(), STOP_SECONDS)
        assert self.plane.calls.count == 0
        assert self.plane.budget.bytes == 0
        self.call(self.plane.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()

    async def _settled(self) -> None:
        while self.plane.calls.count:
            await asyncio.sleep(0.01)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

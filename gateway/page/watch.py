"""Asks the broker for the page, at most once a second however many look at it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

from naiad.client import control
from naiad.client.aio import AsyncClient
from naiad.gateway.page.snapshot import snapshot
from naiad.protocol.errors import NaiadError, Unavailable

INTERVAL_SECONDS: Final = 1.0
"""Between two questions to the broker."""
ANSWER_SECONDS: Final = 3.0
"""For a whole state; then the page says that it waits for the server."""

Json = dict[str, Any]


class Watch:
    """One for each gateway process, whichever of its listeners is asked."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._asked: asyncio.Task[bytes | NaiadError] | None = None
        self._begun = 0.0

    async def state(self) -> bytes:
        """The server's state as JSON, a second old at most. Raises NaiadError."""
        loop = asyncio.get_running_loop()
        asked = self._asked
        if asked is None or (asked.done() and loop.time() - self._begun >= INTERVAL_SECONDS):
            self._begun = loop.time()
            asked = self._asked = loop.create_task(self._ask())
        # Others wait for the same: one who leaves does not end it.
        found = await asyncio.shield(asked)
        if isinstance(found, NaiadError):
            raise found
        return found

    async def _ask(self) -> bytes | NaiadError:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                counters = await self._counters()
        except TimeoutError:
            return Unavailable("the server's broker does not answer; try again")
        except NaiadError as fault:
            return fault
        found = snapshot(*counters, time_s=time.monotonic(), now_s=time.time())
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()

    async def _counters(self) -> tuple[Json, list[Json], list[Json]]:
        """The server's own figures, those of its models, and its index of what it knows."""
        rows: list[Json] = []
        piece = await self._client.call(control.counters(None, ANSWER_SECONDS))
        server: Json = piece["server"]
        while piece["next"] is not None:
            piece = await self._client.call(control.counters(piece["next"], ANSWER_SECONDS))
            rows += piece["models"]
        return server, rows, await self._client.call(control.KNOWN)

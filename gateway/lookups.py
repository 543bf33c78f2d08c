"""What a call needs from the server before it can be sent: ids of named regions, models' classes.

Owns what is known of them. The usual call needs nothing, and is not held up by asking whether.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from naiad.client.aio import AsyncClient
from naiad.gateway.calls import InferCall, region_names
from naiad.gateway.known_classes import Classes, KnownClasses
from naiad.protocol.errors import Code, NaiadError, RequestError

NAMES_KNOWN_MAX: Final = 4096
"""Regions whose ids are remembered; beyond, all are asked for again."""


class Found(NamedTuple):
    """What was looked up for one call."""

    ids: dict[str, int]
    """Of its regions, by name."""
    classes: Classes | None = None
    """Of its model, if it wants some."""


NOTHING: Final = Found({})


class Lookups:
    """Of one gateway."""

    def __init__(self, client: AsyncClient) -> None:
        self._regions = NamedRegions(client)
        self._classes = KnownClasses(client)

    def known(self, call: InferCall) -> Found | None:
        """What this call needs; None when the server must be asked for it."""
        for one in call.outputs:
            if one.classification:
                return None  # labels may be others by now
        names = region_names(call)
        if not names:
            return NOTHING
        ids = self._regions.known(names)
        return None if ids is None else Found(ids)

    async def of(self, call: InferCall) -> Found:
        """What this call needs. Raises NaiadError where there is no such thing."""
        classes = None
        if any(one.classification for one in call.outputs):
            classes = await self._classes.of(call.model, call.version)
        return Found(await self._regions.resolved(region_names(call)), classes)

    def forget(self, names: Iterable[str]) -> None:
        """Regions that may be others by now."""
        self._regions.forget(names)

    def forget_all(self) -> None:
        self._regions.clear()


class NamedRegions:
    """Ids by name, as the server last said. An id is never used for another region."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._ids: dict[str, int] = {}

    def known(self, names: frozenset[str]) -> dict[str, int] | None:
        ids = self._ids
        return {name: ids[name] for name in names} if names <= ids.keys() else None

    async def resolved(self, names: frozenset[str]) -> dict[str, int]:
        """Asks the server for those that are not known. Raises RequestError (not_found)."""
        found: dict[str, int] = {}
        for name in names:
            ident = self._ids.get(name)
            if ident is None:
                ident = await self._asked(name)
            found[name] = ident
        return found

    async def _asked(self, name: str) -> int:
        if not name:
            raise RequestError("shared_memory_region: expected a name, got an empty string")
        try:
            rows = await self._client.region_status(name)
        except NaiadError as fault:
            if fault.code is not Code.NOT_FOUND:
                raise
            raise RequestError(
                f"Unable to find shared memory region: '{name:.200}'", code=Code.NOT_FOUND
            ) from fault
        if len(self._ids) >= NAMES_KNOWN_MAX:
            self._ids.clear()
        ident = self._ids[name] = int(rows[0]["id"])
        return ident

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._ids.pop(name, None)

    def clear(self) -> None:
        self._ids.clear()

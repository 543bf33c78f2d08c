"""Who still reads which results: a book of leases per session and request. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from naiad.protocol.errors import Code, Unavailable

LEASED_REQUESTS_MAX: Final = 1 << 16

Held = TypeVar("Held")


class Leases(Generic[Held]):
    """What is lent per (session, request) until the request or the whole session is released."""

    def __init__(self, requests_max: int = LEASED_REQUESTS_MAX) -> None:
        self.requests_max = requests_max
        self._held: dict[int, dict[int, list[Held]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Requests that hold a lease."""
        return self._count

    def add(self, session: int, request: int, held: Held) -> None:
        """Raises Unavailable (budget_exceeded) when clients hold too many results unreleased."""
        requests = self._held.get(session)
        if requests is not None and request in requests:
            requests[request].append(held)
            return
        if self._count >= self.requests_max:
            raise Unavailable(
                f"{self._count} results are leased and not released, at most {self.requests_max} "
                "are allowed; release results (drop the arrays) before asking for more",
                code=Code.BUDGET_EXCEEDED,
            )
        if requests is None:
            requests = self._held[session] = {}
        requests[request] = [held]
        self._count += 1

    def end(self, session: int, request: int) -> list[Held]:
        """What the request held, no longer leased; empty when it holds nothing."""
        requests = self._held.get(session)
        if requests is None or request not in requests:
            return []
        ended = requests.pop(request)
        if not requests:
            del self._held[session]
        self._count -= 1
        return ended

    def end_session(self, session: int) -> list[Held]:
        """What all requests of a session held."""
        requests = self._held.pop(session, {})
        self._count -= len(requests)
        return [held for ended in requests.values() for held in ended]

    def held(self) -> Iterator[Held]:
        """Everything that is leased."""
        for requests in self._held.values():
            for held in requests.values():
                yield from held

    def keys(self) -> tuple[tuple[int, int], ...]:
        """(session, request) of every lease."""
        return tuple((session, key) for session, keys in self._held.items() for key in keys)

"""The index of the model repository, with what was never loaded: what a client may choose from.

What lies there is asked of the repository helper each time, as Triton looks each time, and only
with explicit control: else all of it is known. A repository that cannot be read in time keeps
nobody waiting: then the index is what is known.
"""

from __future__ import annotations

from typing import Any, Final

from naiad.broker.core.catalog import Catalog
from naiad.broker.core.events import RepositoryScanned, ScanRepository, SendReply
from naiad.broker.core.queries import Queries
from naiad.broker.core.sessions import Session
from naiad.broker.core.world import SECOND_NS, World

Json = dict[str, Any]

LISTINGS_PENDING_MAX: Final = 64
"""Calls that wait for the helper; beyond, they are told what is known."""
PATIENCE_NS: Final = 2 * SECOND_NS


class Listing:
    """Answers the operation `index`."""

    def __init__(self, world: World, catalog: Catalog, queries: Queries) -> None:
        self._world = world
        self._catalog = catalog
        self._queries = queries
        self._calls: dict[int, tuple[int, int, list[Json]]] = {}
        """(session, call, what was known when it was asked) by the question's number."""

    def index(
        self, session: Session, call: int, *, ready_only: bool, known_only: bool
    ) -> list[Json] | None:
        """The rows; None when they are answered later. `known_only`: as nobody need look for."""
        rows = self._queries.index(ready_only)
        is_all = ready_only or known_only or not self._catalog.explicit
        if is_all or len(self._calls) >= LISTINGS_PENDING_MAX:
            return rows
        token = self._world.number()
        self._calls[token] = (session.key, call, rows)
        self._world.actions.append(ScanRepository(token, None, None, only_names=True))
        self._world.at(self._world.now_ns + PATIENCE_NS, lambda: self._answer(token, ()))
        return None

    def listed(self, event: RepositoryScanned) -> bool:
        """Whether this was the helper's answer to a question of ours."""
        if not event.only_names:
            return False
        self._answer(event.token, event.models)
        return True

    def _answer(self, token: int, models: tuple[Json, ...]) -> None:
        found = self._calls.pop(token, None)
        if found is None:
            return
        session, call, rows = found
        try:
            reply = SendReply(session, call, None, _with_names(rows, models))
        except Exception as raised:
            reply = SendReply(session, call, self._world.blame(raised, "the call index"), None)
        self._world.actions.append(reply)


def _with_names(rows: list[Json], models: tuple[Json, ...]) -> list[Json]:
    """The rows, and one for each of these models that has none."""
    known = {row["name"] for row in rows}
    names = [str(one["name"]) for one in models]
    rows += [{"name": name} for name in names if name not in known]
    return sorted(rows, key=lambda row: str(row["name"]))

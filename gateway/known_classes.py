"""What the gateway knows of models' classes: how their outputs become some, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from naiad.client.aio import AsyncClient

MODELS_KNOWN_MAX: Final = 64
"""Models whose labels are remembered; beyond, all are asked for again."""


class Classes(NamedTuple):
    """How a model's outputs become classes. `labels` by the output; `mark` says which load."""

    mark: str
    batches: bool
    labels: dict[str, Sequence[str]]


class KnownClasses:
    """Of the models that were asked for classes; the server says each time whether they hold."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._known: dict[tuple[str, int], Classes] = {}

    async def of(self, model: str, version: int) -> Classes:
        """Raises NaiadError when nothing of that name serves."""
        known = self._known.get((model, version))
        answer = await self._client.class_labels(model, version, known.mark if known else "")
        if known is None or answer["mark"] != known.mark:
            known = Classes(answer["mark"], answer["batches"], answer["labels"])
            if len(self._known) >= MODELS_KNOWN_MAX:
                self._known.clear()
            self._known[model, version] = known
        return known

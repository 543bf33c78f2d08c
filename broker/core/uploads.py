"""Files that came with loads: which folders of them are needed.

Owns the names of the folders; writing and removing them is done elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from naiad.broker.core.events import KeepUploads
from naiad.broker.core.models import UNLOADED
from naiad.broker.core.world import SECOND_NS, World
from naiad.protocol.errors import Code, RequestError, Unavailable

UPLOADS_MAX: Final = 64
"""Models that are served from files of a load: they lie in the run directory, often in memory."""
SWEEP_NS: Final = 300 * SECOND_NS
"""Between two looks for folders whose load never came: their gateway died, or was not heard."""
_NAME: Final = re.compile(r"[0-9a-f]{32}")


class Uploads:
    """Folders that are needed by a load under way, or by a version that is not unloaded."""

    def __init__(self, world: World, is_allowed: bool) -> None:
        self._world = world
        self._is_allowed = is_allowed
        self._taken: set[str] = set()

    @property
    def is_allowed(self) -> bool:
        return self._is_allowed

    def take(self, upload: str) -> None:
        """From now on it is ours to remove. Raises RequestError for what is no folder's name."""
        if not _NAME.fullmatch(upload):
            raise RequestError(f"upload: expected 32 hexadecimal digits, got {upload!r:.40}")
        self._taken.add(upload)

    def check(self, override: str | None) -> None:
        """Whether a load may bring files along."""
        if not self._is_allowed:
            raise RequestError(
                "files in a load are refused by this server; start it with --allow-file-override,"
                " or put the model into the model repository",
                code=Code.UNSUPPORTED,
            )
        if override is None:
            raise RequestError("Load parameter 'config' must be specified for model file override")
        if len(self._taken) > UPLOADS_MAX:
            raise Unavailable(
                f"{UPLOADS_MAX} loads with files are served or under way; unload one of them"
            )

    def drop_unused(self, pending: Iterable[str]) -> None:
        """Have those removed that neither `pending` loads nor versions need any more."""
        if not self._taken:
            return
        world = self._world
        versions = [v for model in world.models.values() for v in model.all_versions()]
        needed = {one.upload for one in versions if one.reason != UNLOADED}
        needed.update(pending, (one.upload for one in world.retiring))
        dropped = self._taken - needed
        if dropped:
            self._taken -= dropped
            world.actions.append(KeepUploads(frozenset(self._taken), tuple(sorted(dropped))))

    def announce(self) -> None:
        """At the start: what an earlier broker left is needed only by what is served again. And
        from then on again and again, where loads may bring files: some loads never come."""
        world = self._world
        world.actions.append(KeepUploads(frozenset(self._taken), ()))
        if self._is_allowed:
            world.at(world.now_ns + SWEEP_NS, self.announce)

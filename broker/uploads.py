"""Folders with files that came with loads: removed when no version needs them any more.

Gateways make them (naiad.gateway.uploads); which are needed the core decides.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from typing import Final

from naiad.broker.core.events import KeepUploads
from naiad.protocol.endpoints import Endpoints

ORPHAN_SECONDS: Final = 900.0
"""A folder so old whose load never came is nobody's: its gateway died, or the load was lost."""


class Uploads:
    """Removes folders, and waits for nobody."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._folder = endpoints.uploads_dir

    def perform(self, action: KeepUploads) -> None:
        """Remove what is not needed any more, and what nobody needs and nobody is writing."""
        for upload in action.dropped:
            self._remove(upload)
        self._sweep(action.kept)

    def _remove(self, upload: str) -> None:
        shutil.rmtree(f"{self._folder}/{upload}", ignore_errors=True)

    def _sweep(self, kept: Collection[str]) -> None:
        try:
            with os.scandir(self._folder) as entries:
                for entry in list(entries):
                    age_seconds = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if entry.name not in kept and age_seconds > ORPHAN_SECONDS:
                        self._remove(entry.name)
        except OSError:  # there is none yet, or it went meanwhile
            return

"""The repository helper as the operating system shows it: a child of the process that asks."""

from __future__ import annotations

from pathlib import Path

import psutil

from naiad.broker.repository import RepositoryHelper

MODULE = "naiad.config.helper"
LIMIT_SECONDS = 60.0


def helper_of(repository: Path, limit_seconds: float = LIMIT_SECONDS) -> RepositoryHelper:
    return RepositoryHelper((str(repository),), {}, limit_seconds=limit_seconds)


def helper_pids(broker: int | None = None) -> list[int]:
    """The living helpers of a broker, or of this process."""
    return [one.pid for one in psutil.Process(broker).children() if _is_living_helper(one)]


def _is_living_helper(process: psutil.Process) -> bool:
    try:
        return MODULE in process.cmdline()
    except psutil.NoSuchProcess:  # it has ended, or is a zombie
        return False

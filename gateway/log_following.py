"""Makes this process's log what the server's log settings say, now and at each change.

The broker keeps the settings and answers a question for their next change when there is one, so
nothing is polled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from naiad.client.aio import AsyncClient
from naiad.client.control import log_settings
from naiad.config.log_levels import INITIAL, shows
from naiad.protocol.errors import NaiadError
from naiad.protocol.messages import LogLevels

WATCH_SECONDS: Final = 300.0
"""Then the same question is asked anew."""
RETRY_SECONDS: Final = 1.0
OURS: Final = "naiad"


class _Shown(logging.Filter):
    """Lets through what is switched on."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = INITIAL

    def filter(self, record: logging.LogRecord) -> bool:
        return shows(self.levels, record.levelno)

    def set(self, levels: LogLevels) -> None:
        self.levels = levels
        is_verbose = levels.verbose > 0
        logging.getLogger(OURS).setLevel(logging.DEBUG if is_verbose else logging.INFO)


async def follow(client: AsyncClient) -> None:
    """Until cancelled. What the process's handlers write goes through a filter from now on."""
    shown = _Shown()
    for handler in logging.getLogger().handlers:
        handler.addFilter(shown)
    revision: int | None = None
    while True:
        try:
            found = await client.call(log_settings({}, after=revision, timeout_s=WATCH_SECONDS))
        except NaiadError:  # the time is over, or the broker is away: requests will say so
            await asyncio.sleep(RETRY_SECONDS)
            continue
        revision = int(found["revision"])
        shown.set(levels_of(found["settings"]))


def levels_of(settings: dict[str, Any]) -> LogLevels:
    return LogLevels(
        settings["log_info"],
        settings["log_warning"],
        settings["log_error"],
        settings["log_verbose_level"],
        settings["log_format"],
    )

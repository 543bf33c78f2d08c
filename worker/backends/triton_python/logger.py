"""pb_utils.Logger: lines on stderr, which the supervisor takes into the server's log."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Final

from naiad.config.log_levels import INITIAL, shows
from naiad.protocol.messages import LogLevels

LOGGER_NAME: Final = "naiad.model"


class LogLevel(IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVEL: Final = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}
_log = logging.getLogger(LOGGER_NAME)


class _Shown(logging.Filter):
    """Lets through what the server's log settings let through."""

    levels = INITIAL

    def filter(self, record: logging.LogRecord) -> bool:
        return shows(self.levels, record.levelno)


_shown: Final = _Shown()


class Logger:
    """Static methods, as Triton has them; verbose lines are not shown unless asked for."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: IntEnum = LogLevel.INFO) -> None:
        _log.log(_LEVEL[LogLevel(level)], "%s", message)

    @staticmethod
    def log_info(message: str) -> None:
        _log.info("%s", message)

    @staticmethod
    def log_warn(message: str) -> None:
        _log.warning("%s", message)

    @staticmethod
    def log_error(message: str) -> None:
        _log.error("%s", message)

    @staticmethod
    def log_verbose(message: str) -> None:
        _log.debug("%s", message)


def set_levels(levels: LogLevels) -> None:
    """What to show from now on: a logger belongs to the process, and so do its levels."""
    _shown.levels = levels


def write_to_stderr() -> None:
    """Show this logger's lines, apart from whatever logging a model sets up for itself."""
    if _log.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    _log.addHandler(handler)
    handler.addFilter(_shown)
    _log.setLevel(logging.DEBUG)
    _log.propagate = False

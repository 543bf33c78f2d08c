"""pb_utils.Logger: lines on stderr, which the supervisor takes into the server's log."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Final

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


def write_to_stderr() -> None:
    """Show this logger's lines, apart from whatever logging a model sets up for itself."""
    if _log.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False

"""What is written to the log, as Triton's log settings say it: one switch per level. Pure.

`info`, `warning` and `error` are switches of their own, so that one may go without the others;
verbose lines (Python's debug) need `verbose` of at least 1.
"""

from __future__ import annotations

from typing import Final

from naiad.protocol.messages import LogLevels

FORMATS: Final = ("default", "ISO8601")
"""default: Triton's prefix, LMMDD hh:mm:ss.ffffff; ISO8601: the date and time alone."""
VERBOSE_MAX: Final = 2**32 - 1
INITIAL: Final = LogLevels(True, True, True, 0, "ISO8601")
"""Of a process that nobody has told yet."""
_ERROR: Final = 40
_WARNING: Final = 30
_INFO: Final = 20
"""Python's numbers of levels."""
NUMBERS: Final = {"error": _ERROR, "warning": _WARNING, "info": _INFO, "verbose": 10}


def shows(levels: LogLevels, number: int) -> bool:
    """Whether a line of this level (Python's number) is written."""
    if number >= _ERROR:
        return levels.error
    if number >= _WARNING:
        return levels.warning
    if number >= _INFO:
        return levels.info
    return levels.verbose > 0

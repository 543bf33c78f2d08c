"""What lies in a directory under a name: a directory, a file, or one of the things nobody expects.

Asks the disk without ever opening anything (a named pipe would block) and raises nothing: what
cannot be found out is an answer too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Final

from naiad.config.names import printable

DIRECTORY: Final = "a directory"
FILE: Final = "a file"
NOTHING: Final = "nothing"

_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISDIR, DIRECTORY),
    (stat.S_ISREG, FILE),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def what_is_at(path: str) -> str:
    """`a directory`, `a file`, `a link to nothing ('/gone')`, ...: links are followed."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as fault:
        return _unreachable(path, fault)
    return next((text for is_kind, text in _KINDS if is_kind(mode)), "of an unknown kind")


def is_broken_link(path: str) -> bool:
    """Whether it is a link that leads nowhere, in a circle, or to where we may not look."""
    return os.path.islink(path) and not os.path.exists(path)


def _unreachable(path: str, fault: OSError | ValueError) -> str:
    try:
        target = printable(os.readlink(path))
    except (OSError, ValueError):
        target = ""
    number = fault.errno if isinstance(fault, OSError) else None
    if target and number == errno.ELOOP:
        return f"a link that leads in a circle ({target})"
    if target and number == errno.ENOENT:
        return f"a link to nothing ({target})"
    reason = fault.strerror if isinstance(fault, OSError) else str(fault)
    if target:
        return f"a link that cannot be followed ({target}: {reason})"
    return NOTHING if number == errno.ENOENT else f"out of reach ({reason})"

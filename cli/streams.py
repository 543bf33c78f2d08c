"""The three standard streams of a command: there, and able to take any text.

A person may close one (`>&-`), send it to a full disk, or set an encoding that cannot hold the name
of a model. Nothing of this is a reason for a traceback, nor for a server not to serve.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Final

import click

from naiad.config.names import visible

_DESCRIPTORS: Final = (0, 1, 2)
_UNWRITTEN: Final = frozenset(
    {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF}
)
"""Errors of writing: all that an OSError says when stdout has no buffer that could say it again."""


def prepare() -> None:
    """Put /dev/null in the place of a closed stream; what no encoding holds becomes \\xff."""
    for descriptor in _DESCRIPTORS:
        _fill(descriptor)
    # closefd: as Python's own ones, they stay for as long as the process.
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files and texts of models may hold what no encoding has.
            stream.reconfigure(errors="backslashreplace")


def _fill(descriptor: int) -> None:
    """A free number would be the next file's that is opened, and our words would go into it."""
    try:
        os.fstat(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
        os.set_inheritable(descriptor, True)


def output_fault(error: OSError | None = None) -> OSError | None:
    """Why what was printed did not arrive, if it did not; then stdout is thrown away, or Python
    would complain once more at exit. `error` is one that may or may not be of printing."""
    if error is not None and (error.filename is not None or error.errno not in _UNWRITTEN):
        error = None
    try:
        sys.stdout.flush()
    except OSError as again:
        error = again
    if error is not None:
        _discard(sys.stdout.fileno())
    return error


def complain(text: str) -> None:
    """One line on stderr, if it can be written: the exit code says the rest."""
    try:
        click.echo("\n".join(map(visible, f"naiad: {text}".split("\n"))), err=True)
    except OSError:
        _discard(sys.stderr.fileno())


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)

"""Where a plan and its config are written: whole or not at all, and over nothing unasked."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Final

from naiad.cli.building.plan_config import BACKEND
from naiad.cli.building.source import Source
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.config.entries import what_is_at
from naiad.config.model_directory import CONFIGS
from naiad.config.names import printable
from naiad.config.pbtxt import FILE_NAME

CACHE_BYTES_MAX: Final = 2**30
"""Timing caches have megabytes; more is another file."""


def config_path(source: Source) -> str:
    """config.pbtxt where there is none or it is a plan's already; else one to choose, beside it.

    `naiad serve --model-config-name tensorrt` chooses that one, and the ONNX model stays as it is.
    """
    if not source.has_config or source.serves_plan:
        return os.path.join(source.directory, FILE_NAME)
    return os.path.join(source.directory, CONFIGS, f"{BACKEND}.pbtxt")


def refuse_existing(paths: Iterable[str]) -> None:
    """Asked before the work is done, not after."""
    for path in paths:
        if os.path.lexists(path):
            raise CommandFailed(
                f"{printable(path)} is there already; replace it with --force, or write "
                "elsewhere with --output",
                ExitCode.USAGE,
            )


def refuse_unwritable(paths: Iterable[str]) -> None:
    """A build takes minutes, and would be lost at their end. Makes nothing."""
    for path in paths:
        folder = os.path.dirname(os.path.abspath(path))
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        fault = ""
        if os.path.isdir(path):
            fault = os.strerror(errno.EISDIR)
        elif not os.path.isdir(folder):
            fault = f"{printable(folder)} is {what_is_at(folder)}"
        elif not os.access(folder, os.W_OK | os.X_OK):
            fault = f"no right to write in {printable(folder)}"
        if fault:
            raise CommandFailed(f"cannot write {printable(path)} ({fault})", ExitCode.USAGE)


def write_whole(path: str, content: bytes | memoryview) -> None:
    """Written beside its place and moved there: a server never sees half of it."""
    partial = f"{path}.{os.getpid()}.partial"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # before its name is: else a crash may leave it empty
            os.replace(partial, path)
        finally:
            if os.path.lexists(partial):
                os.remove(partial)
    except OSError as fault:
        raise CommandFailed(f"cannot write {printable(path)} ({fault.strerror})") from fault


def read_cache(path: str) -> bytes:
    """A timing cache; empty where there is none yet."""
    try:
        with open(path, "rb") as file:
            content = file.read(CACHE_BYTES_MAX + 1)
    except FileNotFoundError:
        return b""
    except OSError as fault:
        raise CommandFailed(f"cannot read {printable(path)} ({fault.strerror})") from fault
    if len(content) > CACHE_BYTES_MAX:
        raise CommandFailed(
            f"{printable(path)} is larger than {CACHE_BYTES_MAX} bytes and no timing cache"
        )
    return content

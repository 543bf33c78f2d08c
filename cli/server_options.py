"""The options that every command talking to a running server has: which one it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from naiad.config.settings import DEFAULT_NAME

Command = Callable[..., Any]


def server_options(command: Command) -> Command:
    """Adds --run-dir (as `folder`) and --name."""
    command = click.option(
        "--name", default=DEFAULT_NAME, help="The server's name, when it was given one."
    )(command)
    return click.option("--run-dir", "folder", help="The server's run directory.")(command)

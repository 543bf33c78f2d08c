"""Options that several commands have: which running server is meant, and what one has."""

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


def missing_gpu_option(command: Command) -> Command:
    """Adds --on-missing-gpu."""
    return click.option(
        "--on-missing-gpu",
        type=click.Choice(["fail", "cpu"]),
        default="fail",
        help="What becomes of models for a GPU where there is none; default: fail.",
    )(command)

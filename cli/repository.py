"""`naiad load` and `naiad unload`: change what a running server serves (explicit control)."""

from __future__ import annotations

from typing import Final

import click

from naiad.cli import run_dir
from naiad.cli.control import ControlLink, refused, require_server
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.server_options import server_options
from naiad.protocol.errors import NaiadError

LOAD_SECONDS_MAX: Final = 660.0
"""A little longer than the load timeout that a model has by default."""
CONFIG_BYTES_MAX: Final = 1024 * 1024


@click.command(epilog="\b\nExamples:\n  naiad load magika\n  naiad load mlp --config override.json")
@click.argument("model")
@click.option("--config", metavar="FILE", help="JSON that replaces the model's config.pbtxt.")
@server_options
def load(model: str, config: str | None, folder: str | None, name: str) -> None:
    """Load MODEL, or load it anew; the old one serves until the new one is ready."""
    _call("load", model, folder, name, _read(config) if config is not None else b"")
    click.echo(f"{model} is loaded")


@click.command(epilog="\b\nExample:\n  naiad unload magika")
@click.argument("model")
@server_options
def unload(model: str, folder: str | None, name: str) -> None:
    """Unload MODEL; what it is working on is finished first."""
    _call("unload", model, folder, name)
    click.echo(f"{model} is unloaded")


def _call(operation: str, model: str, folder: str | None, name: str, payload: bytes = b"") -> None:
    where = run_dir.located(folder, name)
    require_server(where)
    try:
        with ControlLink(where) as link:
            link.call(operation, payload, LOAD_SECONDS_MAX, model=model)
    except NaiadError as fault:
        raise refused(fault) from fault


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise CommandFailed(
            f"cannot read --config {path}: {error.strerror}", ExitCode.USAGE
        ) from error
    if len(content) > CONFIG_BYTES_MAX:
        raise CommandFailed(
            f"--config {path} is larger than {CONFIG_BYTES_MAX} bytes", ExitCode.USAGE
        )
    return content

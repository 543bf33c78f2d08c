"""The options of `naiad serve` for its front door. Rare ones are hidden, because --help is to fit a
screen: they are in docs/access.md and docs/grpc.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from naiad.cli.seconds import Seconds
from naiad.gateway.options import RESTRICTED, header_pattern
from naiad.gateway.users import header_name

HTTP_PORT: Final = 8000
HTTP_ADDRESS: Final = "127.0.0.1"
GATEWAYS_MAX: Final = 64
OFF: Final = "off"
PORT_VARIABLE: Final = "NAIAD_HTTP_PORT"
GRPC_PORT: Final = 8001
GRPC_PORT_VARIABLE: Final = "NAIAD_GRPC_PORT"
_WISHES: Final = click.Choice(["auto", "true", "false"])

F = TypeVar("F", bound=Callable[..., Any])


def options(command: F) -> F:
    """Adds the options of the front door to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _header(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    try:
        return text and header_name(text)
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from None


def _pattern(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    try:
        return text and header_pattern(text)
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from None


_TLS: Final[Sequence[Callable[[Any], Any]]] = tuple(
    click.option(f"--{skin}-{name}", hidden=True, **kind)
    for skin in ("http", "grpc")
    for name, kind in (
        ("use-ssl", {"is_flag": True}),
        ("use-ssl-mutual", {"is_flag": True}),
        ("server-cert", {"metavar": "PEM"}),
        ("server-key", {"metavar": "PEM"}),
        ("root-cert", {"metavar": "PEM"}),
    )
)

_OPTIONS: Final[Sequence[Callable[[Any], Any]]] = (
    *_TLS,
    click.option(
        "--http-port",
        default=str(HTTP_PORT),
        envvar=PORT_VARIABLE,
        metavar="PORT|off",
        help=f"KServe v2, HTTP; 0: any free; default: {HTTP_PORT}.",
    ),
    click.option(
        "--http-address",
        default=HTTP_ADDRESS,
        metavar="ADDRESS",
        help=f"0.0.0.0: for all; or unix:PATH; default: {HTTP_ADDRESS}.",
    ),
    click.option(
        "--grpc-port",
        default=str(GRPC_PORT),
        envvar=GRPC_PORT_VARIABLE,
        metavar="PORT|off",
        help=f"The same over gRPC; default: {GRPC_PORT}.",
    ),
    click.option("--grpc-address", metavar="ADDRESS", hidden=True),
    click.option("--reuse-http-port", is_flag=True, hidden=True),
    click.option("--reuse-grpc-port", is_flag=True, hidden=True),
    click.option("--grpc-header-forward-pattern", callback=_pattern, metavar="REGEX", hidden=True),
    click.option(
        "--gateways",
        type=click.IntRange(1, GATEWAYS_MAX),
        default=1,
        help="Processes for both ports; default: 1.",
    ),
    click.option(
        "--http-max-input-size",
        type=click.IntRange(1),
        metavar="BYTES",
        help="For JSON and raw or decompressed bodies; default: 64 MiB.",
    ),
    click.option(
        "--http-header-forward-pattern",
        callback=_pattern,
        metavar="REGEX",
        help="Headers that become parameters.",
    ),
    click.option(
        "--allow-client-shm",
        type=_WISHES,
        default="auto",
        help="For whom; auto (default): this machine.",
    ),
    click.option(
        "--allow-management",
        type=_WISHES,
        default="auto",
        help="Load, unload and settings, likewise.",
    ),
    click.option("--management-port", type=click.IntRange(0, 65535), hidden=True),
    click.option("--management-address", metavar="ADDRESS", hidden=True),
    *(
        click.option(option, multiple=True, metavar="CATEGORIES:HEADER=VALUE|@FILE", hidden=True)
        for option in RESTRICTED
    ),
    click.option("--user-header", callback=_header, metavar="NAME", hidden=True),
    click.option("--fairness-header", callback=_header, metavar="NAME", hidden=True),
    click.option(
        "--grace-seconds",
        type=Seconds(0),
        default=0.0,
        help="After Ctrl-C: serving, but not ready.",
    ),
)

"""The ports of `naiad serve`: its options for gateways, and the sockets that these inherit.

The sockets are made before anything is started: a taken port is known at once, and connections are
taken from the first moment.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.seconds import Seconds
from naiad.config.listening import UNIX_PREFIX, ListenFailed, listening
from naiad.gateway.options import tls_files

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


_TLS: Final[Sequence[Callable[[Any], Any]]] = tuple(
    click.option(f"--{skin}-{name}", hidden=True, **kind)  # in docs/access.md
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
        help=f"Or 0.0.0.0, unix:PATH; default: {HTTP_ADDRESS}.",
    ),
    click.option(
        "--grpc-port",
        default=str(GRPC_PORT),
        envvar=GRPC_PORT_VARIABLE,
        metavar="PORT|off",
        help=f"The same over gRPC; default: {GRPC_PORT}.",
    ),
    click.option(
        "--grpc-address",
        metavar="ADDRESS",
        hidden=True,  # rarely wanted, and --help is to fit a screen; in docs/grpc.md
    ),
    click.option("--reuse-http-port", is_flag=True, hidden=True),
    click.option("--reuse-grpc-port", is_flag=True, hidden=True),
    click.option("--grpc-header-forward-pattern", metavar="REGEX", hidden=True),
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
        metavar="REGEX",
        help="Headers that become parameters.",
    ),
    click.option(
        "--allow-client-shm",
        type=_WISHES,
        default="auto",
        help="Through a gateway; auto (default): this machine.",
    ),
    click.option(
        "--allow-management",
        type=_WISHES,
        default="auto",
        help="Likewise for load and unload.",
    ),
    click.option(
        "--grace-seconds",
        type=Seconds(0),
        default=0.0,
        help="To serve on after Ctrl-C, not ready.",
    ),
)


@dataclass(frozen=True, slots=True)
class FrontDoor:
    """What a supervisor needs to start gateways; none without a port."""

    url: str = ""
    grpc_target: str = ""
    gateways_count: int = 0
    grace_seconds: float = 0.0
    arguments: Sequence[str] = ()
    http: Sequence[socket.socket] = field(default=())
    grpc: Sequence[socket.socket] = field(default=())

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """What gateways inherit, by the option that says so."""
        return {
            "--http-fd": [one.fileno() for one in self.http],
            "--grpc-fd": [one.fileno() for one in self.grpc],
        }

    def close(self) -> None:
        for one in (*self.http, *self.grpc):
            if one.family == socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    os.unlink(one.getsockname())
            one.close()


def opened(
    *,
    http_port: str,
    http_address: str,
    grpc_port: str,
    grpc_address: str | None,
    gateways: int,
    drain_seconds: float,
    http_max_input_size: int | None,
    http_header_forward_pattern: str | None,
    allow_client_shm: str,
    allow_management: str,
    grace_seconds: float,
    reuse_http_port: bool = False,
    reuse_grpc_port: bool = False,
    **gateway_options: str | bool | None,
) -> FrontDoor:
    """Listen. Raises CommandFailed (PORT) with one sentence when that is not possible."""
    arguments = [
        f"--drain-seconds={drain_seconds}",
        f"--allow-client-shm={allow_client_shm}",
        f"--allow-management={allow_management}",
        f"--grace-seconds={grace_seconds}",
    ]
    if http_max_input_size is not None:
        arguments.append(f"--http-max-input-size={http_max_input_size}")
    if http_header_forward_pattern:
        arguments.append(f"--http-header-forward-pattern={http_header_forward_pattern}")
    for name, value in gateway_options.items():  # the gateway's own, by the same names
        option = f"--{name.replace('_', '-')}"
        if value:
            arguments.append(option if value is True else f"{option}={value}")
    try:  # what every gateway will load
        is_https = tls_files(gateway_options, "http").context() is not None
        tls_files(gateway_options, "grpc").context()
    except ListenFailed as fault:
        raise CommandFailed(str(fault), ExitCode.USAGE) from fault
    http: list[socket.socket] = []
    grpc: list[socket.socket] = []
    url = grpc_target = ""
    try:
        if http_port != OFF:
            number = _port("--http-port", http_port)
            http.append(
                listening(http_address, number, what="--http-port", reuse_port=reuse_http_port)
            )
            url = _url(http_address, http[0])
            if is_https:
                url = url.replace("http://", "https://")
        else:
            arguments.append("--no-http")
        if grpc_port != OFF:
            number = _port("--grpc-port", grpc_port)
            is_unix = http_address.startswith(UNIX_PREFIX)
            host = grpc_address or (HTTP_ADDRESS if is_unix else http_address)
            one = listening(host, number, what="--grpc-port", reuse_port=reuse_grpc_port)
            grpc.append(one)
            grpc_target = _url(host, one).removeprefix("http://")
    except ListenFailed as fault:
        FrontDoor(http=http, grpc=grpc).close()
        raise CommandFailed(str(fault), ExitCode.PORT) from fault
    if not http and not grpc:
        return FrontDoor()
    return FrontDoor(url, grpc_target, gateways, grace_seconds, arguments, http, grpc)


def _port(option: str, given: str) -> int:
    port = int(given) if given.isascii() and given.isdecimal() else -1
    if not 0 <= port <= 65535:
        raise click.UsageError(f"{option}: expected a port (0 to 65535) or off, got {given!r}")
    return port


def _url(address: str, one: socket.socket) -> str:
    if address.startswith(UNIX_PREFIX):
        return address
    host, port = one.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

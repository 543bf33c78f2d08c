"""The metrics port of `naiad serve`: its options, and the socket that the process inherits."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.front_door_options import HTTP_ADDRESS, OFF
from naiad.config.listening import UNIX_PREFIX, ListenFailed, listening, port_number

METRICS_PORT: Final = 8002
PORT_VARIABLE: Final = "NAIAD_METRICS_PORT"

F = TypeVar("F", bound=Callable[..., Any])


def options(command: F) -> F:
    """Adds the options of the metrics port to a command."""
    address = click.option(
        "--metrics-address",
        metavar="ADDRESS",
        hidden=True,  # rarely wanted, and --help is to fit a screen; in docs/metrics.md
    )
    gpus = click.option(
        "--allow-gpu-metrics",
        type=bool,
        default=True,
        metavar="true|false",
        hidden=True,
    )
    port = click.option(
        "--metrics-port",
        default=str(METRICS_PORT),
        envvar=PORT_VARIABLE,
        metavar="PORT|off",
        help=f"For Prometheus; default: {METRICS_PORT}.",
    )
    return port(address(gpus(command)))


@dataclass(frozen=True, slots=True)
class MetricsListener:
    """What a supervisor needs to start the metrics process; nothing when it is off."""

    url: str = ""
    socket: socket.socket | None = None

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """What the metrics process inherits, by the option that says so."""
        return {} if self.socket is None else {"--fd": [self.socket.fileno()]}

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


def opened(metrics_port: str, metrics_address: str | None, http_address: str) -> MetricsListener:
    """Listen. Raises CommandFailed (PORT) with one sentence when that is not possible."""
    if metrics_port == OFF:
        return MetricsListener()
    try:
        number = port_number(metrics_port)
    except ValueError as fault:
        raise click.UsageError(f"--metrics-port: {fault}; off: none") from None
    address = metrics_address
    if address is None:
        address = HTTP_ADDRESS if http_address.startswith(UNIX_PREFIX) else http_address
    if address.startswith(UNIX_PREFIX):
        raise click.UsageError("--metrics-address: expected an IP address or a host name")
    try:
        one = listening(address, number, what="--metrics-port")
    except ListenFailed as fault:
        raise CommandFailed(str(fault), ExitCode.PORT) from fault
    host, port = one.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    return MetricsListener(f"http://{place}:{port}/metrics", one)

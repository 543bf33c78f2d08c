"""The ports of `naiad serve`: the sockets that its gateways inherit, and what these are told.

The sockets are made before anything is started: a taken port is known at once, and connections are
taken from the first moment.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import click

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.front_door_options import HTTP_ADDRESS, OFF
from naiad.config.listening import UNIX_PREFIX, ListenFailed, listening, port_number
from naiad.config.shared_port import GRACE_SECONDS, is_shared, let_nobody_in
from naiad.gateway.options import (
    FILE_PREFIX,
    management_place,
    restrictions,
    tls_files,
)
from naiad.gateway.restrictions import RestrictionFault


@dataclass(frozen=True, slots=True)
class FrontDoor:
    """What a supervisor needs to start gateways; none without a port."""

    url: str = ""
    grpc_target: str = ""
    management_url: str = ""
    gateways_count: int = 0
    grace_seconds: float = 0.0
    arguments: Sequence[str] = ()
    http: Sequence[socket.socket] = field(default=())
    grpc: Sequence[socket.socket] = field(default=())
    management: Sequence[socket.socket] = field(default=())
    secrets: Mapping[str, int] = field(default_factory=dict)
    """Files in memory, by the option that says so: in command lines everybody could read them."""
    unix_paths: Sequence[str] = ()
    """Of sockets; removed at the end."""

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """What gateways inherit, by the option that says so."""
        return {
            "--http-fd": [one.fileno() for one in self.http],
            "--grpc-fd": [one.fileno() for one in self.grpc],
            "--management-fd": [one.fileno() for one in self.management],
            **{option: [descriptor] for option, descriptor in self.secrets.items()},
        }

    @property
    def is_shared(self) -> bool:
        """Whether another server may have a port of this one."""
        return any(is_shared(one) for one in (*self.http, *self.grpc))

    def leave(self) -> None:
        """Leave the ports to the gateways that run: when the last of them has closed one, its who
        comes late is refused, where another server listens too is served there, and waits for
        nobody. No gateway can be started from now on."""
        let_nobody_in([one for one in (*self.http, *self.grpc) if is_shared(one)])
        for one in (*self.http, *self.grpc, *self.management):
            one.close()

    def close(self) -> None:
        for descriptor in self.secrets.values():
            os.close(descriptor)
        for one in (*self.http, *self.grpc, *self.management):
            one.close()
        for path in self.unix_paths:
            with contextlib.suppress(OSError):
                os.unlink(path)


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
    management_address: str | None,
    management_port: int | None,
    http_restricted_api: Sequence[str],
    grpc_restricted_protocol: Sequence[str],
    reuse_http_port: bool = False,
    reuse_grpc_port: bool = False,
    **gateway_options: str | bool | None,
) -> FrontDoor:
    """Listen. Raises CommandFailed with one sentence when that is not possible (PORT), or when
    gateways could not use what was given (USAGE)."""
    if reuse_http_port or reuse_grpc_port:
        grace_seconds = max(grace_seconds, GRACE_SECONDS)
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
    restricted = {
        "--http-restricted-api": http_restricted_api,
        "--grpc-restricted-protocol": grpc_restricted_protocol,
    }
    try:
        _check(gateway_options, restricted)
        place = management_place(management_address, management_port)
    except (ListenFailed, RestrictionFault) as fault:
        raise CommandFailed(str(fault), ExitCode.USAGE) from fault
    for option, groups in restricted.items():
        arguments += [f"{option}={group}" for group in groups if group.startswith(FILE_PREFIX)]
    secrets = _secrets(restricted)
    http: list[socket.socket] = []
    grpc: list[socket.socket] = []
    management: list[socket.socket] = []
    url = grpc_target = management_url = ""
    try:
        if http_port != OFF:
            number = _port("--http-port", http_port)
            http.append(
                listening(
                    http_address,
                    number,
                    what="--http-port",
                    reuse_port=reuse_http_port,
                    reuse_option="--reuse-http-port",
                    is_open=not reuse_http_port,
                )
            )
            url = _url(http_address, http[0])
            if gateway_options["http_use_ssl"] or gateway_options["http_use_ssl_mutual"]:
                url = url.replace("http://", "https://")
        else:
            arguments.append("--no-http")
        if grpc_port != OFF:
            number = _port("--grpc-port", grpc_port)
            is_unix = http_address.startswith(UNIX_PREFIX)
            host = grpc_address or (HTTP_ADDRESS if is_unix else http_address)
            one = listening(
                host,
                number,
                what="--grpc-port",
                reuse_port=reuse_grpc_port,
                reuse_option="--reuse-grpc-port",
                is_open=not reuse_grpc_port,
            )
            grpc.append(one)
            grpc_target = _url(host, one).removeprefix("http://")
        if place is not None:
            management.append(listening(*place, what="--management-port", local_only=True))
            management_url = _url(place[0], management[0])
    except ListenFailed as fault:
        paths = _unix_paths(http, management)
        FrontDoor(
            http=http, grpc=grpc, management=management, secrets=secrets, unix_paths=paths
        ).close()
        raise CommandFailed(str(fault), ExitCode.PORT) from fault
    if not http and not grpc and not management:
        FrontDoor(secrets=secrets).close()
        return FrontDoor()
    return FrontDoor(
        url, grpc_target, management_url, gateways, grace_seconds, arguments,
        http, grpc, management, secrets, _unix_paths(http, management),
    )  # fmt: skip


def _unix_paths(*sockets: Sequence[socket.socket]) -> list[str]:
    """While they are open: a closed one does not know its own any more."""
    family = socket.AF_UNIX
    return [one.getsockname() for some in sockets for one in some if one.family == family]


def _check(
    gateway_options: Mapping[str, str | bool | None], restricted: Mapping[str, Sequence[str]]
) -> None:
    """What every gateway will load. Raises ListenFailed and RestrictionFault."""
    tls_files(gateway_options, "http").context()
    tls_files(gateway_options, "grpc").context()
    for option, groups in restricted.items():
        restrictions(option, groups)


def _secrets(restricted: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Files without a name, by the option that tells a gateway that it inherits one."""
    found: dict[str, int] = {}
    for option, groups in restricted.items():
        text = "\n".join(group for group in groups if not group.startswith(FILE_PREFIX))
        if text:
            descriptor = found[f"{option}-fd"] = os.memfd_create("naiad")
            os.write(descriptor, text.encode())
    return found


def _port(option: str, given: str) -> int:
    try:
        return port_number(given)
    except ValueError as fault:
        raise click.UsageError(f"{option}: {fault}; off: none") from None


def _url(address: str, one: socket.socket) -> str:
    if address.startswith(UNIX_PREFIX):
        return address
    host, port = one.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

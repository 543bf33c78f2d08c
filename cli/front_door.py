"""The ports of `naiad serve`: the sockets that its gateways inherit, and what these are told.

The sockets are made before anything is started: a taken port is known at once, and connections are
taken from the first moment.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import click

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.front_door_options import HTTP_ADDRESS, OFF
from naiad.config.listening import UNIX_PREFIX, ListenFailed, listening, port_number
from naiad.config.shared_port import GRACE_SECONDS, is_shared, let_nobody_in
from naiad.gateway.options import FILE_PREFIX, management_place, restrictions, tls_files
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
        """Leave the ports to the gateways that run. When the last of them has closed one, who comes
        late is refused, or served by another server that listens there, too: he waits for nobody.
        No gateway can be started from now on."""
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
    restricted = {
        "--http-restricted-api": http_restricted_api,
        "--grpc-restricted-protocol": grpc_restricted_protocol,
    }
    arguments = [
        *_arguments(
            {
                "drain_seconds": str(drain_seconds),
                "allow_client_shm": allow_client_shm,
                "allow_management": allow_management,
                "grace_seconds": str(grace_seconds),
                "http_max_input_size": str(http_max_input_size or ""),
                "http_header_forward_pattern": http_header_forward_pattern,
                "no_http": http_port == OFF,
                **gateway_options,
            }
        ),
        *_public(restricted),
    ]
    try:
        _check(gateway_options, restricted)
        place = management_place(management_address, management_port)
    except (ListenFailed, RestrictionFault) as fault:
        raise CommandFailed(str(fault), ExitCode.USAGE) from fault
    has_tls = bool(gateway_options["http_use_ssl"] or gateway_options["http_use_ssl_mutual"])
    host = grpc_address or (HTTP_ADDRESS if http_address.startswith(UNIX_PREFIX) else http_address)
    wanted = {
        "http": (http_address, _port("--http-port", http_port), reuse_http_port),
        "grpc": (host, _port("--grpc-port", grpc_port), reuse_grpc_port),
    }
    sockets = _open_sockets(wanted, place)
    if not any(sockets.values()):
        return FrontDoor()
    return replace(
        _door(sockets),
        url=_url(http_address, sockets["http"], "https" if has_tls else "http"),
        grpc_target=_url(host, sockets["grpc"], "http").removeprefix("http://"),
        management_url=_url(place[0], sockets["management"], "http") if place else "",
        gateways_count=gateways,
        grace_seconds=grace_seconds,
        arguments=arguments,
        secrets=_secrets(restricted),
    )


def _open_sockets(
    wanted: Mapping[str, tuple[str, int | None, bool]], management: tuple[str, int] | None
) -> dict[str, list[socket.socket]]:
    """For each skin its address, port (None: not wanted) and whether that is shared; all or none.

    Raises CommandFailed (PORT).
    """
    found: dict[str, list[socket.socket]] = {"http": [], "grpc": [], "management": []}
    try:
        for skin, (address, number, is_shared) in wanted.items():
            if number is not None:
                found[skin].append(_listening(skin, address, number, is_shared))
        if management is not None:
            found["management"].append(
                listening(*management, what="--management-port", local_only=True)
            )
    except ListenFailed as fault:
        _door(found).close()
        raise CommandFailed(str(fault), ExitCode.PORT) from fault
    return found


def _arguments(options: Mapping[str, str | bool | None]) -> list[str]:
    """The command line of a gateway: its options have the names of the server's."""
    found = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value:
            found.append(option if value is True else f"{option}={value}")
    return found


def _listening(skin: str, address: str, number: int, is_shared: bool) -> socket.socket:
    """Closed to everybody until the models are ready, where another server has the port, too."""
    return listening(
        address,
        number,
        what=f"--{skin}-port",
        reuse_port=is_shared,
        reuse_option=f"--reuse-{skin}-port",
        is_open=not is_shared,
    )


def _door(sockets: Mapping[str, Sequence[socket.socket]]) -> FrontDoor:
    """With the paths of Unix sockets, while they are open: a closed one does not know its own."""
    return FrontDoor(
        http=sockets["http"],
        grpc=sockets["grpc"],
        management=sockets["management"],
        unix_paths=[
            one.getsockname()
            for some in sockets.values()
            for one in some
            if one.family == socket.AF_UNIX
        ],
    )


def _check(
    gateway_options: Mapping[str, str | bool | None], restricted: Mapping[str, Sequence[str]]
) -> None:
    """What every gateway will load. Raises ListenFailed and RestrictionFault."""
    tls_files(gateway_options, "http").context()
    tls_files(gateway_options, "grpc").context()
    for option, groups in restricted.items():
        restrictions(option, groups)


def _public(restricted: Mapping[str, Sequence[str]]) -> list[str]:
    """Groups that are named by a file: who reads the command line learns no secret."""
    return [
        f"{option}={group}"
        for option, groups in restricted.items()
        for group in groups
        if group.startswith(FILE_PREFIX)
    ]


def _secrets(restricted: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Files without a name, by the option that tells a gateway that it inherits one."""
    found: dict[str, int] = {}
    for option, groups in restricted.items():
        text = "\n".join(group for group in groups if not group.startswith(FILE_PREFIX))
        if text:
            descriptor = found[f"{option}-fd"] = os.memfd_create("naiad")
            os.write(descriptor, text.encode())
    return found


def _port(option: str, given: str) -> int | None:
    """None: no such port is wanted."""
    if given == OFF:
        return None
    try:
        return port_number(given)
    except ValueError as fault:
        raise click.UsageError(f"{option}: {fault}; off: none") from None


def _url(address: str, sockets: Sequence[socket.socket], scheme: str) -> str:
    """Of the first; empty when there is none."""
    if not sockets or address.startswith(UNIX_PREFIX):
        return address if sockets else ""
    host, port = sockets[0].getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

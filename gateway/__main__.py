"""`python -m naiad.gateway`: one gateway process, under `naiad serve` or another supervisor.

Signals: the first SIGTERM or SIGINT drains, a second one ends at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from naiad.client.aio import AsyncClient
from naiad.config.listening import ListenFailed, listening
from naiad.config.shared_port import GRACE_SECONDS, let_nobody_in
from naiad.gateway.access import Access
from naiad.gateway.garbage import Garbage
from naiad.gateway.http_app import HttpApp
from naiad.gateway.http_server import HttpServer
from naiad.gateway.limits import Limits
from naiad.gateway.listener import Listener, end
from naiad.gateway.log_following import follow
from naiad.gateway.options import management_place, parser, restrictions, tls_files
from naiad.gateway.page.watch import Watch
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.gateway.restrictions import Restriction, RestrictionFault
from naiad.gateway.users import UserHeaders

if TYPE_CHECKING:
    from naiad.gateway.grpc_server import GrpcServer

LOG: Final = logging.getLogger("naiad.gateway")
FAILED_SECONDS: Final = 1.0
"""A supervisor that restarts at once must not spin over a port that is taken."""


class ExitCode(IntEnum):
    """How a gateway ends."""

    DONE = 0
    DRAIN_TIMED_OUT = 1
    USAGE = 2  # argparse's own number for a wrong command line
    LISTEN_FAILED = 3
    INTERRUPTED = 130


class Ports(NamedTuple):
    """Sockets that listen."""

    http: list[socket.socket]
    grpc: list[socket.socket]
    management: list[socket.socket]
    own: list[socket.socket]
    """Those of them that are this process's alone."""


class Skin(NamedTuple):
    """What the options say of HTTP or gRPC, found right before anything is started."""

    tls: ssl.SSLContext | None
    header_pattern: str
    restricted: Mapping[str, Restriction]
    users: UserHeaders


class Skins(NamedTuple):
    http: Skin
    grpc: Skin


def skins(options: argparse.Namespace) -> Skins:
    """Raises ListenFailed and RestrictionFault."""
    given = vars(options)
    users = UserHeaders(options.user_header, options.fairness_header)
    return Skins(
        Skin(
            tls_files(given, "http").context(),
            options.http_header_forward_pattern,
            restrictions(
                "--http-restricted-api",
                options.http_restricted_api,
                options.http_restricted_api_fd,
            ),
            users,
        ),
        Skin(
            tls_files(given, "grpc").context(),
            options.grpc_header_forward_pattern,
            restrictions(
                "--grpc-restricted-protocol",
                options.grpc_restricted_protocol,
                options.grpc_restricted_protocol_fd,
            ),
            users,
        ),
    )


async def serve(options: argparse.Namespace, ports: Ports, how: Skins) -> ExitCode:
    """Serve until a signal comes."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    again = asyncio.Event()

    def on_signal() -> None:
        (again if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    limits = Limits(input_bytes_max=options.http_max_input_size)
    client = AsyncClient(options.run_dir, role="gateway", on_full="raise")
    plane = Plane(client, limits, options.run_dir)
    access = Access(
        client_shm=options.allow_client_shm,
        management=options.allow_management,
        has_management_door=bool(ports.management),
    )
    phase = Phase()
    watch = Watch(client)
    listeners: list[Listener[Any]] = [
        http_server(plane, phase, access, watch, how.http, ports.http),
        *grpc_servers(plane, phase, access, how.grpc, ports.grpc),
    ]
    if ports.management:
        # Loopback or a Unix socket: who can reach it, may.
        opened = Access(client_shm="true", management="true")
        plain = how.http._replace(tls=None)
        listeners.append(http_server(plane, phase, opened, watch, plain, ports.management))
    for one in listeners:
        await one.start()
    following = asyncio.ensure_future(follow(client))
    garbage = Garbage()
    garbage.start(loop)
    await asked.wait()
    let_nobody_in(ports.own)
    grace_seconds = options.grace_seconds
    if options.reuse_port:
        grace_seconds = max(grace_seconds, GRACE_SECONDS)
    times = (grace_seconds, options.drain_seconds)
    draining = asyncio.ensure_future(end(phase, listeners, *times))
    interrupted = asyncio.ensure_future(again.wait())
    await asyncio.wait((draining, interrupted), return_when=asyncio.FIRST_COMPLETED)
    code = ExitCode.INTERRUPTED
    if draining.done():
        code = ExitCode.DONE if draining.result() else ExitCode.DRAIN_TIMED_OUT
    garbage.stop()
    for task in (draining, interrupted, following):
        task.cancel()
    for one in listeners:
        one.close()
    await plane.close()
    return code


def http_server(
    plane: Plane,
    phase: Phase,
    access: Access,
    watch: Watch,
    how: Skin,
    sockets: list[socket.socket],
) -> HttpServer:
    app = HttpApp(plane, phase, access, watch, how.header_pattern, how.restricted, how.users)
    return HttpServer(plane, phase, app, sockets, how.tls)


def grpc_servers(
    plane: Plane, phase: Phase, access: Access, how: Skin, sockets: list[socket.socket]
) -> list[GrpcServer]:
    """The gRPC server, or none without a socket for it."""
    if not sockets:
        return []
    # Only here: protobuf takes 10 MB and a tenth of a second.
    from naiad.gateway.grpc_server import GrpcServer, Options

    wanted = Options(
        header_pattern=how.header_pattern,
        tls=how.tls,
        restricted=how.restricted,
        users=how.users,
    )
    return [GrpcServer(plane, phase, access, sockets, wanted)]


def run(options: argparse.Namespace, ports: Ports, how: Skins) -> ExitCode:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve(options, ports, how))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's where there is one: a tenth less CPU per request."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def opened(options: argparse.Namespace) -> Ports:
    """The listening sockets, inherited or made here. Raises ListenFailed."""
    http = [socket.socket(fileno=descriptor) for descriptor in options.http_fd or ()]
    grpc = [socket.socket(fileno=descriptor) for descriptor in options.grpc_fd or ()]
    shared = options.reuse_port
    if not http and not options.no_http:
        where = (options.http_address, options.http_port)
        http.append(listening(*where, what="--http-port", reuse_port=shared))
    if not grpc and options.grpc_port is not None:
        where = (options.grpc_address or options.http_address, options.grpc_port)
        grpc.append(listening(*where, what="--grpc-port", reuse_port=shared))
    management = [socket.socket(fileno=descriptor) for descriptor in options.management_fd or ()]
    place = management_place(options.management_address, options.management_port)
    if not management and place is not None:
        what = "--management-port"
        management.append(listening(*place, what=what, reuse_port=shared, local_only=True))
    inherited = {*(options.http_fd or ()), *(options.grpc_fd or ()), *(options.management_fd or ())}
    own = [one for one in (*http, *grpc, *management) if one.fileno() not in inherited]
    return Ports(http, grpc, management, own)


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        how = skins(options)
        ports = opened(options)
        for what, one, is_inherited in (
            ("HTTP", ports.http, options.http_fd),
            ("gRPC", ports.grpc, options.grpc_fd),
            ("management", ports.management, options.management_fd),
        ):
            if one and not is_inherited:
                LOG.info("%s on %s", what, one[0].getsockname())
        return run(options, ports, how)
    except (ListenFailed, RestrictionFault) as fault:
        print(f"naiad gateway: {fault}", file=sys.stderr, flush=True)
        time.sleep(FAILED_SECONDS)
        is_usage = isinstance(fault, RestrictionFault)
        return ExitCode.USAGE if is_usage else ExitCode.LISTEN_FAILED


if __name__ == "__main__":
    sys.exit(main())

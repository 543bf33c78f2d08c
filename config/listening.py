"""Listening sockets of front ends, made by whoever starts them: a gateway, or its supervisor.

A supervisor that holds the socket keeps what the kernel has accepted while a gateway is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from ipaddress import ip_address
from typing import Any, Final

BACKLOG: Final = 1024
"""Connections that the kernel holds until they are accepted."""
UNIX_PREFIX: Final = "unix:"


class ListenFailed(Exception):
    """One sentence: what could not be had, why, and what to do."""


def listening(
    address: str,
    port: int,
    *,
    what: str,
    reuse_port: bool = False,
    local_only: bool = False,
    is_open: bool = True,
) -> socket.socket:
    """A listening socket; `address` is an IP address, a host name, or `unix:PATH`.

    Args:
        what: the option that says the port, e.g. "--http-port", for the error.
        reuse_port: several processes may listen on the same port, and the kernel chooses.
        is_open: False: nobody is let in before somebody listens.
        local_only: refuse an address that other machines can reach.

    Raises ListenFailed.
    """
    if address.startswith(UNIX_PREFIX):
        return _unix(address.removeprefix(UNIX_PREFIX))
    family, kind, protocol, _, place = _resolved(address, port)
    if local_only and not ip_address(place[0].partition("%")[0]).is_loopback:
        raise ListenFailed(
            f"{what}: {address} can be reached from other machines; expected a loopback address or"
            " unix:PATH"
        )
    out = socket.socket(family, kind, protocol)
    try:
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # "::" alone means both kinds, as people expect of "all addresses".
            out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        out.bind(place)
        if is_open:
            out.listen(BACKLOG)
    except OSError as fault:
        out.close()
        raise ListenFailed(_bind_fault(address, port, what, fault)) from fault
    return out


def _resolved(address: str, port: int) -> tuple[Any, ...]:
    try:
        return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except OSError as fault:
        raise ListenFailed(f"cannot listen on {address}: {fault.strerror or fault}") from fault


def _bind_fault(address: str, port: int, what: str, fault: OSError) -> str:
    if fault.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {address} is taken by another program (another server?); stop it, or"
            f" choose another {what} (0: any free one)"
        )
    if fault.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {address}: this machine has no such address; choose another"
    return f"cannot listen on {address} port {port}: {fault.strerror}; choose another {what}"


def _unix(path: str) -> socket.socket:
    """A Unix socket; a dead one that is in the way is replaced, a living one is not."""
    out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path).st_mode) and not _is_alive(path):
                os.unlink(path)
        out.bind(path)
        out.listen(BACKLOG)
    except OSError as fault:
        out.close()
        raise ListenFailed(f"cannot listen on {path}: {fault.strerror}") from fault
    return out


def _is_alive(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True

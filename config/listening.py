"""Listening sockets of front ends, made by whoever starts them: a gateway, or its supervisor.

A supervisor that holds the socket keeps what the kernel has accepted while a gateway is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from ipaddress import ip_address
from typing import Any, Final

from naiad.protocol.endpoints import SOCKET_PATH_BYTES_MAX

BACKLOG: Final = 1024
"""Connections that the kernel holds until they are accepted."""
UNIX_PREFIX: Final = "unix:"
PORT_MAX: Final = 65535


_NUMBER: Final = re.compile("[0-9]{1,5}")


class ListenFailed(Exception):
    """One sentence: what could not be had, why, and what to do."""


def port_number(text: str) -> int:
    """A port on a command line, 0 for any that is free. Raises ValueError with one sentence."""
    port = int(text) if _NUMBER.fullmatch(text) else -1
    if not 0 <= port <= PORT_MAX:
        raise ValueError(f"expected a port (0 to {PORT_MAX}), got {text!r:.80}")
    return port


def listening(
    address: str,
    port: int,
    *,
    what: str,
    reuse_port: bool = False,
    reuse_option: str = "--reuse-port",
    local_only: bool = False,
    is_open: bool = True,
) -> socket.socket:
    """A listening socket; `address` is an IP address, a host name, or `unix:PATH`.

    Args:
        what: the option that says the port, e.g. "--http-port", for the error.
        reuse_port: several processes may listen on the same port, and the kernel chooses.
        reuse_option: the option that says so, for the error.
        is_open: False: nobody is let in before somebody listens.
        local_only: refuse an address that other machines can reach.

    Raises ListenFailed.
    """
    if address.startswith(UNIX_PREFIX):
        return _unix(address.removeprefix(UNIX_PREFIX))
    family, kind, protocol, _, place = _resolved(address, port, what)
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
        raise ListenFailed(
            _bind_fault(address, port, what, fault, reuse_option if reuse_port else "")
        ) from fault
    return out


def _resolved(address: str, port: int, what: str) -> tuple[Any, ...]:
    try:
        return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except (OSError, UnicodeError) as fault:  # UnicodeError: no host can be called this
        reason = getattr(fault, "strerror", None) or "not the name of a host"
        raise ListenFailed(
            f"{what}: cannot listen on {address!r:.300} ({reason}); expected an IP address of this"
            " machine, 0.0.0.0 for all of them, or a host name"
        ) from fault


def _bind_fault(address: str, port: int, what: str, fault: OSError, reuse_option: str) -> str:
    if fault.errno == errno.EADDRINUSE and reuse_option:
        return (
            f"port {port} on {address} is taken by a program that does not share it; both servers"
            f" need {reuse_option}, and the same user: start the other one with it too, or choose"
            f" another {what} (0: any free one)"
        )
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
    size = len(os.fsencode(path))
    if not 0 < size <= SOCKET_PATH_BYTES_MAX:
        raise ListenFailed(
            f"cannot listen on {UNIX_PREFIX}{path:.300}: a socket's path has 1 to"
            f" {SOCKET_PATH_BYTES_MAX} bytes, got {size}; choose another"
        )
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

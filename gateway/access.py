"""Who may do what, over HTTP and gRPC alike. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal

Wish = Literal["auto", "true", "false"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What is open to whom. "auto": to this machine alone."""

    client_shm: Wish = "auto"
    management: Wish = "auto"
    has_management_door: bool = False
    """What changes the server, and shared memory, is asked for there, and not here."""

    def allows_regions(self, is_local: bool) -> bool:
        """Whether a client may share memory with the server."""
        return self.client_shm == "true" or (self.client_shm == "auto" and is_local)

    def allows_management(self, is_local: bool) -> bool:
        """Whether a client may change the server."""
        return self.management == "true" or (self.management == "auto" and is_local)


def elsewhere(what: str) -> str:
    """For who asks at the wrong door."""
    return f"{what} is served by the server's management listener only; see --management-port"


def is_local(peer: Any) -> bool:
    """Whether a socket's peer is on this machine: a Unix socket, or a loopback address."""
    if not isinstance(peer, tuple):
        return True
    address = ip_address(str(peer[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)

"""Leaving a port that other processes listen on too (SO_REUSEPORT) without losing a connection.

Closing such a socket resets what the kernel has accepted for it and nobody has taken yet. So first
nothing new is let in: the opening packet of a connection is dropped, and its client sends it again
a second later, when the kernel gives it to another process. What had begun is taken meanwhile, and
only then the socket is closed.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

LEAVE_SECONDS: Final = 0.3
"""For connections that are being opened; long for the way there and back, short for those that
have to try again."""

GRACE_SECONDS: Final = 1.0
"""At least, from the wish to end to the end: connections that are kept alive get an answer in it
that says to come again, and are not closed under their client's hands."""

_SO_ATTACH_FILTER: Final = 26
_FLAGS_AT: Final = 13
"""Of the TCP header, which is where a socket's filter begins to count."""
_SYN, _ACK = 0x02, 0x10
_NO_OPENINGS: Final = (
    (0x30, 0, 0, _FLAGS_AT),  # load that byte
    (0x54, 0, 0, _SYN | _ACK),  # and with the two
    (0x15, 0, 1, _SYN),  # SYN alone?
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # take all of it
)
"""A program of the kernel's packet filter."""


def is_shared(one: socket.socket) -> bool:
    """Whether other processes may listen on the same port."""
    if one.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))


def let_nobody_in(sockets: Iterable[socket.socket]) -> None:
    """To these listening sockets, in whatever process they are; others of the port are not meant.

    Those that are not shared stay as they are: nobody else would take what they drop. Where the
    kernel has no such filters, a few connections that are just being opened are reset.
    """
    code = b"".join(struct.pack("HBBI", *line) for line in _NO_OPENINGS)
    program = ctypes.create_string_buffer(code)
    described = struct.pack("HP", len(_NO_OPENINGS), ctypes.addressof(program))
    for one in sockets:
        if is_shared(one):
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)

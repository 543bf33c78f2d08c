"""What is written to a client and not taken yet, with TLS as without.

A transport with TLS counts nothing that it has encrypted already, and takes any amount at once to
encrypt it. So answers are given to it in pieces, and the kernel is asked what it still holds.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections import deque
from collections.abc import Sequence
from typing import Final

PIECE_BYTES: Final = 128 * 1024
"""Of an answer that is encrypted at once."""
WHOLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of an answer without TLS that a transport gets at once: asyncio's copies what it cannot send."""
_INT_BYTES: Final = 4

Buffer = bytes | bytearray | memoryview


def has_tls(transport: asyncio.BaseTransport) -> bool:
    return transport.get_extra_info("sslcontext") is not None


def unwritten_bytes(transport: asyncio.WriteTransport, *, is_tls: bool) -> int:
    """0 when everything has gone; else it changes as long as the client takes something."""
    size = transport.get_write_buffer_size()
    if not is_tls:
        return size
    number = transport.get_extra_info("socket").fileno()
    if number < 0:
        return size  # closed
    queued = fcntl.ioctl(number, termios.TIOCOUTQ, bytes(_INT_BYTES))
    return size + int.from_bytes(queued, sys.byteorder)


class Writer:
    """Answers to one client, one behind the other."""

    __slots__ = ("_closes", "_is_paused", "_is_tls", "_transport", "_unsent", "_unsent_bytes")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_tls = has_tls(transport)
        self._is_paused = False
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._closes = False

    @property
    def has_room(self) -> bool:
        """Whether the client takes what is written to it."""
        return not self._is_paused and not self._unsent

    @property
    def unwritten_bytes(self) -> int:
        """See the function."""
        return self._unsent_bytes + unwritten_bytes(self._transport, is_tls=self._is_tls)

    def write(self, buffers: Sequence[Buffer]) -> None:
        if not self._is_tls and not self._unsent and sum(map(len, buffers)) <= WHOLE_BYTES_MAX:
            # One after the other: asyncio's own `writelines` tells nobody, from Python 3.12 on,
            # that a client does not take what is written to it.
            for buffer in buffers:
                self._transport.write(buffer)
            return
        for buffer in buffers:
            view = memoryview(buffer)
            self._unsent_bytes += len(view)
            for start in range(0, len(view), PIECE_BYTES):
                self._unsent.append(view[start : start + PIECE_BYTES])
        self._go_on()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._go_on()

    def close(self) -> None:
        """Close the transport behind everything that was written."""
        self._closes = True
        self._go_on()

    def _go_on(self) -> None:
        while self._unsent and not self._is_paused:
            piece = self._unsent.popleft()
            self._unsent_bytes -= len(piece)
            self._transport.write(piece)
        if self._closes and not self._unsent:
            self._transport.close()

"""One ROUTER socket of the broker: receive in bounded drains, send without ever waiting.

Owns libzmq's options, the socket monitor and the outbox of each peer. Knows peers by their routing
id; what they are to the scheduler is the loop's business.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import zmq

from naiad.protocol.messages import COPY_BYTES_MAX

MESSAGES_PER_DRAIN_MAX: Final = 256
HIGH_WATER_MARK_MESSAGES: Final = 1000
PAYLOAD_FRAMES_MAX: Final = 4096
CLOSED_SUFFIX: Final = ".full"
"""Of a socket's path while nobody can connect to it."""
REOPEN_SHARE: Final = 0.9
"""Of the connections allowed: with so few again, new ones are taken again."""
OUTBOX_MESSAGE_BYTES: Final = 200
"""What a kept message costs beyond the bytes of its frames."""
HEADER_ALLOWANCE_BYTES: Final = 1024 * 1024
_MONITOR_EVENT: Final = struct.Struct("=Hi")
"""Event and value of a monitor's message; zmq.utils.monitor would import all of asyncio."""
_SO_PEERPIDFD: Final = 77
_CREDENTIALS: Final = struct.Struct("3i")

# pyzmq's Python layer doubles the cost of a call, and an EAGAIN exception costs 5 µs where looking
# costs 1.5 (by a poll of one socket and no time; ZMQ_EVENTS through pyzmq: 3): on the hot path the
# backend's own functions are used.
_receive: Final[Any] = zmq.backend.Socket.recv
_send: Final[Any] = zmq.backend.Socket.send
_look: Final[Any] = zmq.backend.zmq_poll
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)


class Received:
    """`frame` is the header's, to ask libzmq which connection it came over."""

    __slots__ = ("frame", "header", "payload", "peer")

    def __init__(self, peer: bytes, header: bytes, payload: list[bytes], frame: zmq.Frame) -> None:
        self.peer = peer
        self.header = header
        self.payload = payload
        self.frame = frame

    def descriptor(self) -> int:
        return int(self.frame.get(zmq.SRCFD))


class Peer(NamedTuple):
    """What the kernel says about the other end of a connection; `pidfd` -1 if it cannot be had."""

    pid: int
    uid: int
    pidfd: int


class Outbox:
    """What a peer that does not read now is owed, in order."""

    __slots__ = ("messages", "size_bytes")

    def __init__(self) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.size_bytes = 0


class Transport:
    """`start` binds; `close` ends. Everything in between is non-blocking."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        frame_bytes_max: int,
        outbox_bytes_max: int,
        connections_max: int,
        heartbeat_interval_ms: int = 0,
        heartbeat_timeout_ms: int = 0,
    ) -> None:
        self.address = address
        self._path = address.removeprefix("ipc://")
        self._context = context
        self._frame_bytes_max = frame_bytes_max
        self._outbox_bytes_max = outbox_bytes_max
        self._connections_max = connections_max
        self._connections = 0
        self.is_full = False
        """No more connections are taken until some end."""
        self._heartbeat = (heartbeat_interval_ms, heartbeat_timeout_ms)
        self.descriptor = -1
        self.monitor_descriptor = -1
        self._socket: zmq.Socket[bytes]
        self._monitor: zmq.Socket[bytes]
        self._looked_at: list[tuple[zmq.Socket[bytes], int]] = []
        self._monitor_looked_at: list[tuple[zmq.Socket[bytes], int]] = []
        self._is_quiet = False
        """A look found nothing, and the socket was not used since: `descriptor` tells what comes.
        (broker/waiting.py has the rule.)"""
        self._outboxes: dict[bytes, Outbox] = {}
        self.unread = 0
        """Peers that were given up because they did not read; whoever counts them takes them."""

    def start(self) -> None:
        options = self._socket = self._context.socket(zmq.ROUTER)
        options.linger = 0
        options.set_hwm(HIGH_WATER_MARK_MESSAGES)
        options.setsockopt(zmq.ROUTER_MANDATORY, 1)
        options.setsockopt(zmq.MAXMSGSIZE, self._frame_bytes_max + HEADER_ALLOWANCE_BYTES)
        interval_ms, timeout_ms = self._heartbeat
        if interval_ms:
            options.setsockopt(zmq.HEARTBEAT_IVL, interval_ms)
            options.setsockopt(zmq.HEARTBEAT_TIMEOUT, timeout_ms)
        self._monitor = options.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor.linger = 0
        self._looked_at = [(self._socket, _POLLIN)]
        self._monitor_looked_at = [(self._monitor, _POLLIN)]
        _look(self._monitor_looked_at, 0)  # there is nothing yet: from now on its descriptor tells
        self.descriptor = int(self._socket.get(zmq.FD))
        self.monitor_descriptor = int(self._monitor.get(zmq.FD))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path + CLOSED_SUFFIX)
        options.bind(self.address)

    def close(self) -> None:
        if self.is_full:
            self._open_door()  # for libzmq to find and remove it
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=100)

    # --- in ------------------------------------------------------------------------------------

    def hides_message(self) -> bool:
        """Whether `drain` would find something that `descriptor` may be silent about."""
        if self._is_quiet:
            return False
        self._is_quiet = not _look(self._looked_at, 0)
        return not self._is_quiet

    def drain(self) -> Iterator[Received]:
        """What has arrived, MESSAGES_PER_DRAIN_MAX at most; call it when `descriptor` is readable,
        or `hides_message` says so."""
        socket = self._socket
        for count in range(MESSAGES_PER_DRAIN_MAX):
            if count and not self.hides_message():
                return
            self._is_quiet = False
            try:
                peer = _receive(socket, _NOBLOCK)
            except zmq.Again:
                return  # its sender went away between the poll and now
            first = frame = _receive(socket, _NOBLOCK, copy=False)
            header = frame.bytes
            payload: list[bytes] = []
            while frame.more:
                frame = _receive(socket, _NOBLOCK, copy=False)
                if len(payload) <= PAYLOAD_FRAMES_MAX:
                    payload.append(frame.bytes)
            yield Received(peer, header, payload, first)

    def disconnected(self) -> list[int]:
        """Descriptors of connections that ended since the last call.

        Also keeps the number of connections within its limit: libzmq aborts the process when there
        is no descriptor left for one more, so the door is closed before.
        """
        ended: list[int] = []
        while _look(self._monitor_looked_at, 0):
            event, value = _MONITOR_EVENT.unpack(self._monitor.recv_multipart(_NOBLOCK)[0])
            if event == zmq.EVENT_ACCEPTED:
                self._connections += 1
            else:
                self._connections -= 1
                ended.append(value)
        if self.is_full:
            if self._connections <= self._connections_max * REOPEN_SHARE:
                self._open_door()
        elif self._connections >= self._connections_max:
            # Not by unbinding: that would end all connections that came this way.
            os.rename(self._path, self._path + CLOSED_SUFFIX)
            self.is_full = True
        return ended

    def _open_door(self) -> None:
        os.rename(self._path + CLOSED_SUFFIX, self._path)
        self.is_full = False

    # --- out -----------------------------------------------------------------------------------

    def send(self, peer: bytes, frames: list[bytes]) -> bool:
        """Send, or keep for later when the peer does not read. False: the peer is not there, or
        its outbox is over its limit: give it up."""
        outbox = self._outboxes.get(peer)
        if outbox is None:
            sent = self._send_now(peer, frames)
            if sent is not None:
                return sent
            outbox = self._outboxes[peer] = Outbox()
        outbox.size_bytes += _kept_bytes(frames)
        if outbox.size_bytes > self._outbox_bytes_max:
            self.forget(peer)
            self.unread += 1
            return False
        outbox.messages.append(frames)
        return True

    def send_or_drop(self, peer: bytes, frames: list[bytes]) -> None:
        """Send what a peer may miss: nothing is kept for one that does not read."""
        if peer not in self._outboxes:
            self._send_now(peer, frames)

    def flush(self) -> list[bytes]:
        """Try the outboxes again; peers that are gone."""
        gone = []
        for peer, outbox in list(self._outboxes.items()):
            messages = outbox.messages
            while messages:
                sent = self._send_now(peer, messages[0])
                if sent is None:
                    break
                if not sent:
                    gone.append(peer)
                    messages.clear()
                    break
                outbox.size_bytes -= _kept_bytes(messages.popleft())
            if not messages:
                del self._outboxes[peer]
        return gone

    @property
    def is_waiting(self) -> bool:
        """Whether some peer has not read what it should."""
        return bool(self._outboxes)

    def forget(self, peer: bytes) -> None:
        self._outboxes.pop(peer, None)

    def _send_now(self, peer: bytes, frames: list[bytes]) -> bool | None:
        """True: sent. False: no such peer. None: it does not read at the moment."""
        socket = self._socket
        self._is_quiet = False
        last = len(frames) - 1
        try:
            _send(socket, peer, _MORE)
            for index, frame in enumerate(frames):
                flags = _NOBLOCK if index == last else _MORE
                _send(socket, frame, flags, copy=len(frame) <= COPY_BYTES_MAX)
        except zmq.Again:
            return None
        except zmq.ZMQError as fault:
            if fault.errno == zmq.EHOSTUNREACH:
                return False
            raise
        return True


def _kept_bytes(frames: list[bytes]) -> int:
    return OUTBOX_MESSAGE_BYTES + sum([len(frame) for frame in frames])


def peer_of(descriptor: int) -> Peer:
    """Who is at the other end of a Unix socket. Raises OSError when the connection is gone.

    The pidfd comes from the kernel with the connection (SO_PEERPIDFD, Linux 6.5); before that it is
    opened by number and the number is checked again, so that a reused pid is never taken for it.
    """
    with _socket_of(descriptor) as connection:
        raw = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        try:
            pidfd = struct.unpack("i", connection.getsockopt(sockets.SOL_SOCKET, _SO_PEERPIDFD, 4))[
                0
            ]
        except OSError:
            pidfd = os.pidfd_open(pid)
            again = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12)
            if again != raw:
                os.close(pidfd)
                raise
    return Peer(pid, uid, pidfd)


def _socket_of(descriptor: int) -> sockets.socket:
    """A connection may end before its message is read, and its number mean something else."""
    copy = os.dup(descriptor)
    try:
        return sockets.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise

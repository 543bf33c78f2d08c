"""One ROUTER socket of the broker: receive in bounded drains, send without ever waiting.

Owns libzmq's options, the socket monitor and the outbox of each peer. Knows peers by their routing
id; what they are to the scheduler is the loop's business.
"""

from __future__ import annotations

import os
import socket as sockets
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

MESSAGES_PER_DRAIN_MAX: Final = 256
HIGH_WATER_MARK_MESSAGES: Final = 1000
PAYLOAD_FRAMES_MAX: Final = 4096
COPY_BYTES_MAX: Final = 256 * 1024
"""Larger frames go to libzmq by reference; below, a copy costs less than the bookkeeping."""
HEADER_ALLOWANCE_BYTES: Final = 1024 * 1024
_SO_PEERPIDFD: Final = 77
_CREDENTIALS: Final = struct.Struct("3i")

# pyzmq's Python layer doubles the cost of a call, and an EAGAIN exception costs 5 µs where asking
# for the events costs 2: on the hot path the backend's own methods are used.
_receive: Final[Any] = zmq.backend.Socket.recv
_send: Final[Any] = zmq.backend.Socket.send
_get: Final[Any] = zmq.backend.Socket.get
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)
_EVENTS: Final = int(zmq.EVENTS)


class Received(NamedTuple):
    """`frame` is the header's, to ask libzmq which connection it came over."""

    peer: bytes
    header: bytes
    payload: list[bytes]
    frame: zmq.Frame

    def descriptor(self) -> int:
        return int(self.frame.get(zmq.SRCFD))


class Peer(NamedTuple):
    """What the kernel says about the other end of a connection; `pidfd` -1 if it cannot be had."""

    pid: int
    uid: int
    pidfd: int


class Transport:
    """`start` binds; `close` ends. Everything in between is non-blocking."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        frame_bytes_max: int,
        outbox_bytes_max: int,
        heartbeat_interval_ms: int = 0,
        heartbeat_timeout_ms: int = 0,
    ) -> None:
        self.address = address
        self._context = context
        self._frame_bytes_max = frame_bytes_max
        self._outbox_bytes_max = outbox_bytes_max
        self._heartbeat = (heartbeat_interval_ms, heartbeat_timeout_ms)
        self.socket: zmq.Socket[bytes]
        self.monitor: zmq.Socket[bytes]
        self._outboxes: dict[bytes, tuple[list[list[bytes]], int]] = {}

    def start(self) -> None:
        self.socket = self._context.socket(zmq.ROUTER)
        options = self.socket
        options.linger = 0
        options.set_hwm(HIGH_WATER_MARK_MESSAGES)
        options.setsockopt(zmq.ROUTER_MANDATORY, 1)
        options.setsockopt(zmq.MAXMSGSIZE, self._frame_bytes_max + HEADER_ALLOWANCE_BYTES)
        interval_ms, timeout_ms = self._heartbeat
        if interval_ms:
            options.setsockopt(zmq.HEARTBEAT_IVL, interval_ms)
            options.setsockopt(zmq.HEARTBEAT_TIMEOUT, timeout_ms)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.monitor.linger = 0
        self.socket.bind(self.address)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=100)

    # --- in ------------------------------------------------------------------------------------

    def drain(self) -> Iterator[Received]:
        """What has arrived, MESSAGES_PER_DRAIN_MAX at most; call it when a poll said so."""
        socket = self.socket
        for count in range(MESSAGES_PER_DRAIN_MAX):
            if count and not _get(socket, _EVENTS) & _POLLIN:
                return
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
        """Descriptors of connections that ended since the last call."""
        ended: list[int] = []
        while _get(self.monitor, _EVENTS) & _POLLIN:
            event = parse_monitor_message(self.monitor.recv_multipart(_NOBLOCK))
            ended.append(int(event["value"]))
        return ended

    # --- out -----------------------------------------------------------------------------------

    def send(self, peer: bytes, frames: list[bytes]) -> bool:
        """Send, or keep for later when the peer does not read. False: the peer is not there, or
        its outbox is over its limit: give it up."""
        waiting = self._outboxes.get(peer)
        if waiting is None:
            sent = self._send_now(peer, frames)
            if sent is not None:
                return sent
            waiting = self._outboxes[peer] = ([], 0)
        queued, size = waiting
        size += sum(len(frame) for frame in frames)
        if size > self._outbox_bytes_max:
            self.forget(peer)
            return False
        queued.append(frames)
        self._outboxes[peer] = (queued, size)
        return True

    def flush(self) -> list[bytes]:
        """Try the outboxes again; peers that are gone."""
        gone = []
        for peer, (queued, _) in list(self._outboxes.items()):
            while queued:
                sent = self._send_now(peer, queued[0])
                if sent is None:
                    break
                if not sent:
                    gone.append(peer)
                    break
                queued.pop(0)
            if not queued or peer in gone:
                self._outboxes.pop(peer, None)
            else:
                self._outboxes[peer] = (queued, sum(len(f) for one in queued for f in one))
        return gone

    @property
    def is_waiting(self) -> bool:
        """Whether some peer has not read what it should."""
        return bool(self._outboxes)

    def forget(self, peer: bytes) -> None:
        self._outboxes.pop(peer, None)

    def _send_now(self, peer: bytes, frames: list[bytes]) -> bool | None:
        """True: sent. False: no such peer. None: it does not read at the moment."""
        socket = self.socket
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


def peer_of(descriptor: int) -> Peer:
    """Who is at the other end of a Unix socket. Raises OSError when the connection is gone.

    The pidfd comes from the kernel with the connection (SO_PEERPIDFD, Linux 6.5); before that it is
    opened by number and the number is checked again, so that a reused pid is never taken for it.
    """
    with sockets.socket(fileno=os.dup(descriptor)) as connection:
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

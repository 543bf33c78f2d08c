"""The worker's one connection to its broker: a DEALER, its monitor, and a new one when it breaks.

Owns the ZeroMQ context and sockets. After a disconnect the old DEALER is closed with linger 0, so
that libzmq does not send by itself what the worker will send again. Never interprets a message.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from naiad.protocol.messages import INLINE_BYTES_MAX

HIGH_WATER_MESSAGES: Final = 1000
RECONNECT_MS: Final = 20
RECONNECT_MS_MAX: Final = 250
LINGER_MS: Final = 2000
"""How long an ending worker waits for the broker to take its last results."""
_BROKEN: Final = int(
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_CONNECTED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)
"""As plain integers: combining two of the enum's members takes 3 µs."""

Frames = tuple[bytes, list[memoryview]]


class Transport:
    """`start`, then `poll` and `receive`; `reopen` after `is_broken`."""

    def __init__(self, address: str, wake_descriptor: int) -> None:
        self._address = address
        self._wake = wake_descriptor
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self.is_connected = False
        self.is_broken = False

    def start(self) -> None:
        self._poller.register(self._wake, zmq.POLLIN)
        self._open()

    def reopen(self) -> None:
        """A new connection; what the old one had not sent or not received is gone."""
        self._close_sockets(0)
        self._open()

    def _open(self) -> None:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.set_hwm(HIGH_WATER_MESSAGES)
        dealer.setsockopt(zmq.MAXMSGSIZE, INLINE_BYTES_MAX)
        dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        self._monitor = dealer.get_monitor_socket(_BROKEN | _CONNECTED)
        self._dealer = dealer
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self.is_connected = False
        self.is_broken = False
        dealer.connect(self._address)

    def poll(self, timeout_ms: int | None) -> bool:
        """Wait for a message, a change of the connection or a wake-up; True if messages wait."""
        has_messages = False
        for ready, _ in self._poller.poll(timeout_ms):
            if ready is self._dealer:
                has_messages = True
            elif ready is self._monitor:
                self._read_monitor()
            else:
                self._clear_wakeups()
        return has_messages

    def _clear_wakeups(self) -> None:
        try:
            os.read(self._wake, 64)
        except BlockingIOError:
            return

    def _read_monitor(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event & _BROKEN:
                self.is_broken = True
            elif event & _CONNECTED:
                self.is_connected = True

    def receive(self) -> Frames | None:
        """The next message as (header, payload frames), None when there is none now."""
        dealer = self._dealer
        try:
            frame = dealer.recv(_NOBLOCK, copy=False)
        except zmq.Again:
            return None
        header = frame.bytes
        payload: list[memoryview] = []
        while frame.more:
            frame = dealer.recv(_NOBLOCK, copy=False)
            payload.append(frame.buffer)
        return header, payload

    def send(self, header: bytes, payload: Sequence[bytes | memoryview] = ()) -> bool:
        """Queue a message; False when the broker has not taken any for a very long time.

        Payload bytes may be sent without a copy: they must not change any more.
        """
        dealer = self._dealer
        try:
            if payload:
                dealer.send(header, _NOBLOCK_MORE)
                for frame in payload[:-1]:
                    dealer.send(frame, _NOBLOCK_MORE, copy=False)
                dealer.send(payload[-1], _NOBLOCK, copy=False)
            else:
                dealer.send(header, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Flush what was sent, at most for `linger_ms`, and let go of everything."""
        self._close_sockets(linger_ms if self.is_connected and not self.is_broken else 0)
        self._context.term()

    def _close_sockets(self, linger_ms: int) -> None:
        self._poller.unregister(self._dealer)
        self._poller.unregister(self._monitor)
        self._dealer.disable_monitor()
        self._monitor.close(0)
        self._dealer.close(linger_ms)

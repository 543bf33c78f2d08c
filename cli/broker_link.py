"""The supervisor's connection to its broker: a peer of workers.sock like a worker.

Says SUPERVISOR_HELLO with what runs, reports SPAWNED and EXITED, receives WANT. When the connection
breaks it starts a new one and says hello again with the same secret.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Callable
from typing import Final

import zmq

from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode

RECONNECT_MS: Final = 20
RECONNECT_MS_MAX: Final = 100
SEND_QUEUE_MAX: Final = 10_000
SECRET: Final = os.urandom(m.SECRET_BYTES)


class BrokerLink:
    """`start`, then `receive` in every turn of the loop, then `close`.

    Args:
        address: the ZeroMQ address of workers.sock.
        slots: called at each hello: (slot, pid) of every running worker process.
        selector: its descriptors are registered there with `callback` as data. They are
            edge-triggered, which is why `receive` belongs into every turn.
    """

    def __init__(
        self,
        address: str,
        *,
        slots: Callable[[], tuple[tuple[str, int], ...]],
        selector: selectors.BaseSelector,
        callback: Callable[[], None],
    ) -> None:
        self._address = address
        self._slots = slots
        self._selector = selector
        self._callback = callback
        self._registered: list[int] = []
        self._incarnation = 0
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None

    def start(self) -> None:
        """Connect (the broker may come later) and say hello."""
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = SEND_QUEUE_MAX
        socket.reconnect_ivl = RECONNECT_MS
        socket.reconnect_ivl_max = RECONNECT_MS_MAX
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._monitor.linger = 0
        socket.connect(self._address)
        self._socket = socket
        for each in (socket, self._monitor):
            descriptor = int(each.getsockopt(zmq.FD))
            self._selector.register(descriptor, selectors.EVENT_READ, self._callback)
            self._registered.append(descriptor)
        self.send(m.SupervisorHello(SECRET, os.getpid(), self._incarnation, self._slots()))

    def send(self, message: m.Message) -> None:
        """Queue a message. A full queue means a broker that does not read: hello repeats it all."""
        assert self._socket is not None
        try:
            self._socket.send(encode(message), zmq.DONTWAIT)
        except zmq.Again:
            self._restart()

    def receive(self) -> list[m.Message]:
        """Every message that has arrived. Raises ProtocolError for one that is none."""
        assert self._socket is not None
        if self._was_disconnected():
            self._restart()
        received: list[m.Message] = []
        while True:
            try:
                header, *payload = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return received
            message = decode(header, [len(frame) for frame in payload])
            if isinstance(message, m.SlotWelcome):
                self._incarnation = message.incarnation
            received.append(message)

    def close(self) -> None:
        """Close everything; nothing more is sent."""
        self._close_socket()
        self._context.term()

    def _was_disconnected(self) -> bool:
        assert self._monitor is not None
        is_lost = False
        while True:
            try:
                # As zmq.utils.monitor does it, which would import all of asyncio.
                content = self._monitor.recv_multipart(zmq.DONTWAIT)[0]
            except zmq.Again:
                return is_lost
            event = int.from_bytes(content[:2], sys.byteorder)
            is_lost = is_lost or event == zmq.EVENT_DISCONNECTED

    def _restart(self) -> None:
        # A new socket, or libzmq would resend by itself what the new hello says as well.
        self._close_socket()
        self.start()

    def _close_socket(self) -> None:
        while self._registered:  # before closing: the numbers are used again at once
            self._selector.unregister(self._registered.pop())
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=0)
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._socket = self._monitor = None

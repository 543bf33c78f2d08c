"""The worker's one connection to its broker: a DEALER, and a new one whenever it breaks.

Owns the ZeroMQ context, the sockets and the thread that watches the DEALER's monitor. After a
disconnect the old DEALER is closed with linger 0, so that libzmq does not send by itself what the
worker will send again. Never interprets a message.

The thread makes a new connection also while the main thread executes a model: a broker that comes
back must hear of a worker within its recovery time, however long an execution takes. Whoever holds
`lock` may use the DEALER: the main thread always, except while it runs the model's code.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from struct import Struct
from time import monotonic, sleep
from typing import Any, Final

import zmq

from naiad.protocol.messages import COPY_BYTES_MAX, INLINE_BYTES_MAX

HIGH_WATER_MESSAGES: Final = 1000
RECONNECT_MS: Final = 20
RECONNECT_MS_MAX: Final = 100
REOPEN_S_MIN: Final = 0.05
"""Least time between two new connections: a broker that refuses at once is not hammered."""
LINGER_MS: Final = 2000
"""How long an ending worker waits for the broker to take its last results."""
ALIGNED_BYTES_MAX: Final = 64 * 1024
"""A payload frame of up to so many bytes is copied at once: it lies anywhere in libzmq's buffer,
and of each tensor in it that is not aligned NumPy would make a copy of its own."""
_CONNECTED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_BROKEN: Final = int(
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_MONITOR_STOPPED
)
_EVENT: Final = Struct("=HI")
"""Event and value of a monitor's message; zmq.utils.monitor would import all of asyncio."""
_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
"""As plain integers: combining two members of the enum takes 3 µs."""
_POLLIN: Final = int(zmq.POLLIN)
# The wrappers of pyzmq's Python layer cost as much as the calls themselves do.
_send: Final[Any] = zmq.backend.Socket.send
_receive: Final[Any] = zmq.backend.Socket.recv
_poll: Final[Any] = zmq.backend.zmq_poll

Frames = tuple[bytes, list[memoryview]]
Socket = zmq.Socket[bytes]


class Transport:
    """`start`, then `poll`, `receive` and `send` under `lock`; `mend` when `is_broken`."""

    def __init__(self, address: str, wake_descriptor: int, wake: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.is_connected = False
        self.is_broken = False
        self._address = address
        self._wake_descriptor = wake_descriptor
        self._wake = wake
        self._context: zmq.Context[Socket] = zmq.Context()
        self._polled: list[tuple[Socket | int, int]] = []
        self._mended = threading.Event()
        self._opened_at = 0.0
        self._closing = False
        self._watcher = threading.Thread(target=self._watch, name="connection", daemon=True)
        self._on_open: Callable[[], None] = _nothing

    def start(self, on_open: Callable[[], None]) -> None:
        """Take the lock and connect. `on_open` is called, lock held, on each new connection."""
        self.lock.acquire()
        self._on_open = on_open
        self._open()
        self._watcher.start()

    def poll(self, timeout_ms: int) -> bool:
        """Wait for a message or a wake-up; True if there is a message."""
        has_message = False
        for ready, _ in _poll(self._polled, timeout_ms):
            if ready is self._dealer:
                has_message = True
            else:
                _clear(self._wake_descriptor)
        return has_message

    def receive(self) -> Frames | None:
        """The next message as (header, payload frames), None when there is none now."""
        dealer = self._dealer
        try:
            frame: Any = _receive(dealer, _NOBLOCK, copy=False)
        except zmq.Again:
            return None
        header = frame.bytes
        payload: list[memoryview] = []
        while frame.more:
            frame = _receive(dealer, _NOBLOCK, copy=False)
            is_small = len(frame) <= ALIGNED_BYTES_MAX
            payload.append(memoryview(frame.bytes if is_small else frame).toreadonly())
        return header, payload

    def send(self, header: bytes, payload: Sequence[bytes | memoryview] = ()) -> bool:
        """Queue a message; False when the broker has not taken any for a very long time.

        Payload bytes may be sent without a copy: they must not change any more.
        """
        dealer = self._dealer
        try:
            if payload:
                _send(dealer, header, _NOBLOCK_MORE)
                last = len(payload) - 1
                for index, frame in enumerate(payload):
                    flags = _NOBLOCK if index == last else _NOBLOCK_MORE
                    _send(dealer, frame, flags, copy=len(frame) <= COPY_BYTES_MAX)
            else:
                _send(dealer, header, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def break_off(self) -> None:
        """Give this connection up; a new one exists when this returns."""
        self._mended.clear()
        self._dealer.disable_monitor()
        self.mend()

    def mend(self) -> None:
        """Let the watching thread make the new connection it wants to make."""
        self.lock.release()
        self._mended.wait()
        self.lock.acquire()

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Flush what was sent, at most for `linger_ms`, and let go of everything."""
        self._closing = True
        self._dealer.disable_monitor()
        self.lock.release()
        self._watcher.join()
        self._dealer.close(linger_ms if self.is_connected else 0)
        self._context.term()

    # --- The watching thread -----------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            event, _ = _EVENT.unpack(self._monitor.recv_multipart()[0])
            if event & _CONNECTED:
                self.is_connected = True
            elif event & _BROKEN:
                self._mended.clear()
                self.is_broken = True
                self._wake()
                sleep(max(0.0, self._opened_at + REOPEN_S_MIN - monotonic()))
                with self.lock:
                    if self._closing:
                        self._monitor.close(0)
                        return
                    self._reopen()
                self._mended.set()

    def _reopen(self) -> None:
        """What the old connection had not sent or not received is gone."""
        self._dealer.disable_monitor()  # blocks for ever once the monitor's socket is closed
        self._monitor.close(0)
        self._dealer.close(0)
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
        self._polled = [(dealer, _POLLIN), (self._wake_descriptor, _POLLIN)]
        self.is_connected = False
        self.is_broken = False
        self._opened_at = monotonic()
        dealer.connect(self._address)
        self._on_open()


def _nothing() -> None:
    return None


def _clear(descriptor: int) -> None:
    try:
        os.read(descriptor, 64)
    except BlockingIOError:
        return

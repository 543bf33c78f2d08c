"""A DEALER socket to one broker: opened, watched through its monitor, opened anew when it breaks.

Owns the ZeroMQ sockets, the back-off between attempts and what the socket would not take yet. Every
call returns at once; whoever waits does so on `descriptor` and `monitor_descriptor`. libzmq itself
never reconnects and never lingers: the session decides what is sent again. Interprets no message.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import zmq

from naiad.client.calls import Message
from naiad.protocol.errors import Code, Unavailable
from naiad.protocol.messages import COPY_BYTES_MAX, INLINE_BYTES_MAX

HIGH_WATER_MESSAGES: Final = 1000
BACKOFF_NS_MIN: Final = 10_000_000
BACKOFF_NS_MAX: Final = 100_000_000
BYE_LINGER_MS: Final = 100
AWAY_LINGER_MS: Final = 2_000
"""How long a goodbye tries to reach a broker that is away. Nobody waits for that."""
AWAY_RECONNECT_MS: Final = 20
NEVER_MS: Final = 3_600_000
"""libzmq would reconnect then, but the socket is closed long before. Not -1: that throws away what
has arrived and was not read yet when the connection ends."""

_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE_NOBLOCK: Final = int(zmq.SNDMORE) | _NOBLOCK
_POLLIN: Final = int(zmq.POLLIN)
_DOWN: Final = int(
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""CLOSED is what a refused or missing socket path gives: the connecting descriptor was closed."""

Received = tuple[bytes, list[Any]]
"""(header, payload frames) of one message."""

_monitor_numbers: Final = itertools.count()
# The wrappers of pyzmq's Python layer cost twice what the call itself does, and asking for a
# socket's events costs twice what a poll of it alone does.
_send: Final[Any] = zmq.backend.Socket.send
_receive: Final[Any] = zmq.backend.Socket.recv
_look: Final[Any] = zmq.backend.zmq_poll


_contexts: Final[dict[int, zmq.Context[zmq.Socket[bytes]]]] = {}
_contexts_lock: Final = threading.Lock()


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """One context (and its I/O thread) for all clients of a process.

    It is never terminated: that waits for every socket, and would wait for ever for one that an
    interruption left behind.
    """
    pid = os.getpid()
    context = _contexts.get(pid)
    if context is None:
        with _contexts_lock:
            context = _contexts.setdefault(pid, zmq.Context())
    return context


class Connection:
    """`open` when `retry_ns` has come, `send` and `receive`, `lost` when `is_down` says so."""

    def __init__(self, address: str, context: zmq.Context[zmq.Socket[bytes]] | None = None) -> None:
        self.address = address
        self.retry_ns = 0
        """Not before this time is a new attempt made."""
        self.attempts = 0
        """Attempts since the last `established`."""
        self.descriptor = -1
        self.monitor_descriptor = -1
        self._before_close: weakref.WeakMethod[Callable[[], None]] | None = None
        self._context = context
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._looked_at: list[tuple[zmq.Socket[bytes], int]] = []
        self._monitor_looked_at: list[tuple[zmq.Socket[bytes], int]] = []
        self.outbox: deque[Message] = deque()
        """What the socket would not take; `flush` when `descriptor` says that something changed.

        Bounded: nothing more is taken from the session until it is empty, so that it holds at most
        what the session's budgets allow to be in flight.
        """

    def before_close(self, unwatch: Callable[[], None]) -> None:
        """`unwatch`, a method, is called while the descriptors are still open: their numbers will
        soon be those of other files. Its object is not kept alive."""
        self._before_close = weakref.WeakMethod(unwatch)

    @property
    def is_open(self) -> bool:
        """Whether there is a socket; it may still be connecting."""
        return self._socket is not None

    def open(self, now_ns: int) -> None:
        """Begin to connect. Raises Unavailable when this process has no descriptors left."""
        assert self._socket is None
        context = self._context if self._context is not None else shared_context()
        backoff_ns = min(BACKOFF_NS_MIN << min(self.attempts, 16), BACKOFF_NS_MAX)
        self.retry_ns = now_ns + backoff_ns
        self.attempts += 1
        try:
            dealer = context.socket(zmq.DEALER)
            self._socket = dealer
            dealer.set_hwm(HIGH_WATER_MESSAGES)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.MAXMSGSIZE, INLINE_BYTES_MAX)
            dealer.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
            name = f"inproc://naiad-client-monitor-{next(_monitor_numbers)}"
            dealer.monitor(name, _DOWN)
            self._monitor = monitor = context.socket(zmq.PAIR)
            monitor.setsockopt(zmq.LINGER, 0)
            monitor.connect(name)
            # Its descriptor signals only once somebody has looked and found nothing.
            self._monitor_looked_at = [(monitor, _POLLIN)]
            _look(self._monitor_looked_at, 0)
            dealer.connect(self.address)
            self._looked_at = [(dealer, _POLLIN)]
            self.descriptor = int(dealer.get(zmq.FD))
            self.monitor_descriptor = int(monitor.get(zmq.FD))
        except zmq.ZMQError as fault:
            self.close()
            raise Unavailable(
                f"cannot open a connection to {self.address}: {fault}", code=Code.CONNECTION_LOST
            ) from fault

    def established(self) -> None:
        """The broker said WELCOME: the next loss is answered at once again."""
        self.attempts = 0
        self.retry_ns = 0

    def lost(self) -> None:
        """Close what is there; it is opened again when `retry_ns` has come."""
        self._close_sockets(0)

    def close(self, goodbye: list[Message] | None = None) -> None:
        """Let go of the sockets, at once; a farewell has BYE_LINGER_MS to leave meanwhile."""
        if goodbye and self._socket is not None:
            for message in goodbye:
                self.send(message)
        self._close_sockets(BYE_LINGER_MS if goodbye else 0)

    def call_after(self, goodbye: list[Message]) -> None:
        """Say goodbye to a broker that is away, should it come in AWAY_LINGER_MS: libzmq's thread
        sees to it, as long as this process lives."""
        if not goodbye:
            return
        context = self._context if self._context is not None else shared_context()
        with contextlib.suppress(zmq.ZMQError), context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, AWAY_LINGER_MS)
            dealer.setsockopt(zmq.RECONNECT_IVL, AWAY_RECONNECT_MS)
            dealer.connect(self.address)
            for message in goodbye:
                dealer.send_multipart(message, _NOBLOCK)

    def _close_sockets(self, linger_ms: int) -> None:
        self.outbox.clear()
        unwatch = self._before_close() if self._before_close is not None else None
        if self._socket is not None and unwatch is not None:
            unwatch()
        self.descriptor = self.monitor_descriptor = -1
        self._looked_at = self._monitor_looked_at = []
        dealer, self._socket = self._socket, None
        monitor, self._monitor = self._monitor, None
        if dealer is not None:
            dealer.disable_monitor()
        if monitor is not None:
            monitor.close(0)
        if dealer is not None:
            dealer.close(linger_ms)

    def is_down(self) -> bool:
        """Read the monitor: whether the connection broke or could not be made."""
        monitor = self._monitor
        if monitor is None:
            return False
        down = False
        while _look(self._monitor_looked_at, 0):
            event = monitor.recv_multipart(_NOBLOCK)[0]
            down |= bool(int.from_bytes(event[:2], "little") & _DOWN)
        return down

    def send(self, message: Message) -> None:
        """Hand a message over, or keep it until the socket takes it."""
        if self.outbox or not self._put(message):
            self.outbox.append(message)

    def flush(self) -> None:
        """Try again what the socket did not take."""
        while self.outbox and self._put(self.outbox[0]):
            self.outbox.popleft()

    def _put(self, message: Message) -> bool:
        dealer = self._socket
        last = len(message) - 1
        try:
            for index, part in enumerate(message):
                flags = _NOBLOCK if index == last else _MORE_NOBLOCK
                _send(dealer, part, flags, copy=len(part) <= COPY_BYTES_MAX)
        except zmq.Again:
            # Only the first part can fail: libzmq takes a message whole or not at all.
            return False
        return True

    def receive(self) -> Received | None:
        """The next message as (header, payload frames); None when there is none now.

        The payload frames are zmq.Frame: len() and memoryview() work, and they own their bytes.
        """
        dealer = self._socket
        if dealer is None or not _look(self._looked_at, 0):
            return None
        frame: Any = _receive(dealer, _NOBLOCK, copy=False)
        header: bytes = frame.bytes
        payload: list[Any] = []
        while frame.more:
            frame = _receive(dealer, _NOBLOCK, copy=False)
            payload.append(frame)
        return header, payload

    def has_input(self) -> bool:
        """Whether `receive` would return a message.

        The descriptor is edge-triggered: after any other call on the socket, only this tells.
        """
        return self._socket is not None and bool(_look(self._looked_at, 0))

"""One connection of the gRPC listener: a socket, HTTP/2 on it, and the calls on that.

Owns the calls: none outlives the connection. What is to be sent goes out once per turn of the event
loop, so that answers that come together travel together.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from naiad.gateway.access import elsewhere, is_local
from naiad.gateway.grpc_call import Asked, Call, unknown_coding
from naiad.gateway.grpc_codec.head import Head, error_end, fault_end, head_of, http_end
from naiad.gateway.grpc_codec.status import Status
from naiad.gateway.grpc_many_requests import ManyRequestsCall
from naiad.gateway.grpc_method import Method
from naiad.gateway.grpc_one_request import InferenceCall, OneRequestCall
from naiad.gateway.grpc_service import Caller
from naiad.gateway.http2.connection import Connection
from naiad.gateway.http2.frames import ConnectionFault
from naiad.gateway.limits import Limits
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.gateway.transports import has_tls, unwritten_bytes
from naiad.gateway.turns import TASK_SECONDS, TURN_SECONDS
from naiad.protocol.errors import RequestError

PING_SECONDS: Final = 60.0
"""Of silence on a connection with calls, after which it is asked whether it is there."""
PONG_SECONDS: Final = 20.0
"""For the answer."""
PARTING_SECONDS: Final = 1.0
"""For the answer to a goodbye."""
CANCELS_PER_TURN: Final = 128
"""Of a connection that was lost."""
UNREAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""In the socket's buffer, of a client that sends but does not read. Bodies stop below 3 MiB: uvloop
says that the buffer is full at the write after the one that filled it, and each may hold 1 MiB and
a frame."""


class House(Protocol):
    """What connections need of their server."""

    plane: Plane
    phase: Phase
    connections: set[GrpcConnection]
    limits: Limits
    is_leaving: bool

    def method(self, path: bytes) -> Method | None: ...

    def caller(self, is_local: bool, head: Head) -> Caller: ...


class GrpcConnection(asyncio.Protocol):
    """See the module. The sink of its own HTTP/2 connection."""

    def __init__(self, house: House, loop: asyncio.AbstractEventLoop) -> None:
        self.plane = house.plane
        self.phase = house.phase
        self.http2 = Connection(self, head_of)
        self.calls: dict[int, Call] = {}
        self._house = house
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_local = False
        self._is_tls = False
        self._is_flush_due = False
        self._unread_bytes = 0
        """Of answers, in the budget."""
        self._is_receiving = False
        self._is_interrupted = False
        """In reading, with frames left to look at."""
        self._turn_end = 0.0
        self._heard = self._since = loop.time()
        self._pinged = 0.0
        self._parting_since = 0.0
        self._unwritten_bytes = 0
        self._unwritten_since = 0.0

    # --- the socket ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is of another class
        self._is_local = is_local(transport.get_extra_info("peername"))
        self._is_tls = has_tls(transport)
        if len(self._house.connections) >= self._house.limits.connections_max:
            transport.close()
            return
        self._house.connections.add(self)
        self._flush()
        if self._house.is_leaving:
            self.go_elsewhere()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._heard = self._loop.time()
        # Not processor time: to ask for it costs 1 to 2 % of a small request. Who is kept from the
        # processor in its turn has the rest later.
        self._turn_end = time.monotonic() + TURN_SECONDS
        self._is_receiving = True
        try:
            self.http2.receive(data)
        except ConnectionFault as fault:
            self.http2.goodbye(fault)
            self._flush()
            self.close()
        finally:
            self._is_receiving = False
        self._flush()
        if self.http2.has_parted:
            self.leave()
        self._take_turns()

    def _take_turns(self) -> None:
        """Let others have theirs when this client sends very much."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.http2.has_more:
            if not self._is_interrupted:
                self._is_interrupted = True
                transport.pause_reading()
            self.plane.turns.later(self, partial(self.data_received, b""))
        elif self._is_interrupted:
            self._is_interrupted = False
            transport.resume_reading()

    def eof_received(self) -> bool:
        """A client that sends no more wants no more: HTTP/2 has no half-closed ends."""
        return self._transport is not None and self.plane.turns.close_later(self._transport)

    def pause_writing(self) -> None:
        self.http2.is_paused = True

    def resume_writing(self) -> None:
        self.http2.is_paused = False
        self.http2.pump()
        self._flush()

    def connection_lost(self, fault: Exception | None) -> None:
        self._transport = None
        self._count_unread()
        self._house.connections.discard(self)
        self._cancel_some()

    def _cancel_some(self) -> None:
        """Thousands of calls may be under way: others have their turns between."""
        for stream in tuple(islice(self.calls, CANCELS_PER_TURN)):
            call = self.calls.pop(stream, None)
            if call is not None:
                call.cancel()
        if self.calls:
            self._loop.call_soon(self._cancel_some)

    def send_soon(self) -> None:
        if not self._is_flush_due and not self._is_receiving:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._write_out()
        if self._unread_bytes or self.http2.unsent_bytes or self.http2.is_paused:
            self._count_unread()

    def _count_unread(self) -> None:
        """In the budget: who asks for much and reads nothing must not use up the memory."""
        size = 0
        if self._transport is not None:
            size = self.http2.unsent_bytes + self._transport.get_write_buffer_size()
        self._unread_bytes = self.plane.budget.unread(self._unread_bytes, size)

    def _write_out(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        while out := self.http2.take_out():
            if transport is None:
                return
            transport.write(b"".join(out))
            if self.http2.is_paused:
                if transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
                    transport.abort()
                return

    def close(self) -> None:
        """When everything that was written has gone, or been given up."""
        if self._transport is not None:
            self._write_out()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def go_elsewhere(self) -> None:
        """New calls go to another connection; those that are on their way are taken."""
        self.http2.announce()
        self._flush()

    def leave(self) -> None:
        """Say goodbye; close when the client knows, and no call is left.

        It may have begun calls before it knew. They are answered, and so it is told why.
        """
        if not self.http2.is_begun:
            self.close()
            return
        if not self.http2.is_parting:
            self._parting_since = self._loop.time()
            self.http2.part()
            self._flush()
        if self.http2.has_parted and not self.is_busy:
            self.close()

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that ends by itself, answers that wait for their client to
        take what is before them among it."""
        return bool(self.calls or self.http2.unsent_bytes)

    def is_parting(self, now: float) -> bool:
        """Whether the client may not have read the goodbye yet, and is still waited for."""
        http2 = self.http2
        is_waiting = http2.is_parting and not http2.has_parted
        return is_waiting and now - self._parting_since < PARTING_SECONDS

    def check_time(self, now: float) -> None:
        """End the connection if its client is gone or never began; called about once a second."""
        transport = self._transport
        if transport is None:
            return
        unwritten = unwritten_bytes(transport, is_tls=self._is_tls)
        if unwritten != self._unwritten_bytes:
            self._unwritten_bytes, self._unwritten_since = unwritten, now
        elif unwritten and now - self._unwritten_since > self._house.limits.write_seconds:
            self.abort()  # it has taken nothing for long
        if not self.http2.is_begun:
            if now - self._since > self._house.limits.header_seconds:
                self.abort()
        elif self._pinged > self._heard:
            if now - self._pinged > PONG_SECONDS:
                self.abort()
        elif now - self._heard > PING_SECONDS:
            self._pinged = now
            self.http2.ping()
            self._flush()

    # --- calls: the sink of HTTP/2 ---------------------------------------------------------------

    def owes(self) -> None:
        """A task of one of the calls will take its time in this iteration of the loop."""
        self._turn_end -= TASK_SECONDS

    def _check_turn(self) -> None:
        if time.monotonic() > self._turn_end:
            self.http2.end_turn()

    def begun(self, stream: int, head: Any, *, is_ended: bool) -> None:
        """A call begins; refused at once if it cannot be served."""
        self._begin(stream, head, is_ended=is_ended)
        self._check_turn()

    def _begin(self, stream: int, head: Any, *, is_ended: bool) -> None:
        block = self._refusal(head)
        if block is not None:
            self.http2.send_end(stream, block)
            return
        method = self._house.method(head.path)
        if method is None:
            text = f"Method not found: {head.path.decode('latin-1'):.200}"
            self.http2.send_end(stream, fault_end(Status.UNIMPLEMENTED, text, is_all=True))
            return
        restriction = method.restriction
        if restriction is not None and not restriction.allows(head.value(restriction.header)):
            text = f"This protocol is restricted, expecting header '{restriction.name}'"
            self.http2.send_end(stream, fault_end(Status.UNAVAILABLE, text, is_all=True))
            return
        if method.is_elsewhere:
            text = elsewhere(method.name)
            self.http2.send_end(stream, fault_end(Status.PERMISSION_DENIED, text, is_all=True))
            return
        try:
            caller = self._house.caller(self._is_local, head)
        except RequestError as fault:
            self.http2.send_end(stream, error_end(fault, is_all=True))
            return
        call: Call
        asked = Asked(stream, head, caller, method)
        if method.many is not None:
            call = ManyRequestsCall(self, asked)
            call.start(partial(method.many, call))
        elif method.is_inference:
            call = InferenceCall(self, asked)
        else:
            call = OneRequestCall(self, asked)
        self.calls[stream] = call
        if is_ended:
            call.feed(memoryview(b""), is_ended=True)

    def _refusal(self, head: Head) -> bytes | None:
        if head.http_status != 200:
            return http_end(head.http_status)
        return unknown_coding(head)

    def arrived(self, stream: int, data: memoryview, *, is_ended: bool) -> None:
        call = self.calls.get(stream)
        if call is not None:
            call.feed(data, is_ended=is_ended)
            self._check_turn()

    def was_reset(self, stream: int) -> None:
        call = self.calls.get(stream)
        if call is not None:
            call.cancel()

    def drained(self, stream: int) -> None:
        call = self.calls.get(stream)
        if isinstance(call, ManyRequestsCall):
            call.drained()

    def is_over(self, call: Call) -> None:
        self.calls.pop(call.stream, None)
        if not self.phase.is_open and not self.calls:
            # Told before it is closed, a client makes its next call elsewhere instead of losing it.
            self._loop.call_soon(self.leave)

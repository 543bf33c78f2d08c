"""One HTTP/1.1 connection: whose turn it is, what is answered, and when patience ends.

One request is worked on at a time; the next ones of a pipelining client wait, so that answers come
in order. Reads on meanwhile: a client that goes away is noticed, and its request cancelled, at
once. (While more than one request waits, reading pauses, and so does noticing.) Knows no routes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final, Protocol

from naiad.gateway.access import is_local
from naiad.gateway.budget import Budget
from naiad.gateway.calls import BodyPlace
from naiad.gateway.http_known_heads import KnownHeads
from naiad.gateway.http_message import Head, HttpRequest, Response, error_response, wire
from naiad.gateway.http_reader import Reader, Stage
from naiad.gateway.http_status import HttpError, from_fault
from naiad.gateway.limits import Limits
from naiad.gateway.phase import Phase
from naiad.gateway.plane import draining
from naiad.gateway.transports import Writer
from naiad.gateway.turns import TURN_SECONDS, Turns
from naiad.protocol.errors import NaiadError

LINGER_SECONDS: Final = 2.0
"""For a client to read why its request was refused while it still sends it."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Work(Protocol):
    """What is under way for a request."""

    def cancel(self) -> Any: ...


class Door(Protocol):
    """What a connection needs of its server."""

    limits: Limits
    phase: Phase
    budget: Budget
    turns: Turns
    read_buffer: bytearray
    known_heads: KnownHeads
    connections: set[HttpConnection]

    def place(self, head: Head) -> BodyPlace | None:
        """Memory for a large body, where it is used; None: any will do."""

    def handle(self, request: HttpRequest, connection: HttpConnection) -> Work | None:
        """Begin a request; `connection.reply` is called once, now or later."""


class HttpConnection(asyncio.BufferedProtocol):
    """Made by the server for each connection it accepts."""

    def __init__(self, door: Door, loop: asyncio.AbstractEventLoop) -> None:
        self._door = door
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        """Together with the transport."""
        self.is_local = False
        """Whether the client is on this machine."""
        self._reader = Reader(
            door.limits,
            door.read_buffer,
            door.known_heads,
            take=door.budget.take,
            place=door.place,
            arrived=self._arrived,
        )
        self._stage = Stage.IDLE
        self._since = loop.time()
        """When this stage of reading began."""
        self._backlog: deque[tuple[HttpRequest, int]] = deque()
        self._current: HttpRequest | None = None
        self._held_bytes = 0
        """Of the current request, in the budget."""
        self._unread_bytes = 0
        """Of answers, likewise."""
        self._rest_bytes = 0
        """Of what waits to be read on, likewise."""
        self._work: Work | None = None
        self._refusal: HttpError | None = None
        """To be said when everything before it is answered."""
        self._is_deaf = False
        """What still comes is thrown away."""
        self._lingers_since = 0.0
        self._is_advancing = False
        self._is_reading = True
        self._unwritten_bytes = 0
        self._unwritten_since = 0.0

    # --- the transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        self._writer = Writer(transport)  # type: ignore[arg-type]
        self.is_local = is_local(transport.get_extra_info("peername"))
        self._door.connections.add(self)
        limit = self._door.limits.connections_max
        if len(self._door.connections) > limit:
            text = f"{limit} connections are open; try again later"
            self._refuse(HttpError(503, text, headers=(("Retry-After", "1"),)))

    def connection_lost(self, fault: Exception | None) -> None:
        self._door.connections.discard(self)
        self._transport = self._writer = None
        self._abandon()
        self._count_unread()
        self._count_rest()
        self._reader.end()

    def eof_received(self) -> bool:
        """Half-closed is closed: a client that has gone cannot be told from one that still reads,
        and the work of the first must end."""
        self._abandon()
        return self._transport is not None and self._door.turns.close_later(self._transport)

    def pause_writing(self) -> None:
        if self._writer is not None:
            self._writer.pause()

    def resume_writing(self) -> None:
        if self._writer is not None:
            self._writer.resume()
        self._count_unread()
        self._advance()

    def _count_unread(self) -> None:
        """In the budget: who asks for much and reads nothing must not use up the memory."""
        writer = self._writer
        size = 0 if writer is None or writer.has_room else writer.unwritten_bytes
        self._unread_bytes = self._door.budget.unread(self._unread_bytes, size)

    def get_buffer(self, hint: int) -> memoryview:
        if self._is_deaf:
            return memoryview(self._door.read_buffer)
        return self._reader.buffer()

    def buffer_updated(self, size: int) -> None:
        if not self._is_deaf:
            self._read(size)

    def _read_on(self) -> None:
        if not self._is_deaf:
            self._read(0)
        self._advance()

    def _read(self, size: int) -> None:
        reader = self._reader
        try:
            if size:
                reader.feed(size)
            else:
                reader.go_on()
        except HttpError as fault:
            self._refuse(fault)
        except NaiadError as refusal:
            self._refuse(from_fault(refusal))
        if reader.stage is not self._stage:
            if self._stage is Stage.IDLE or reader.stage is Stage.IDLE:
                self._since = self._loop.time()
            self._stage = reader.stage
        if self._backlog or reader.expects_continue or reader.rest:
            self._advance()

    def _arrived(self, request: HttpRequest, held_bytes: int) -> None:
        self._backlog.append((request, held_bytes))
        self._since = self._loop.time()
        limit = self._door.limits.pipeline_max
        if len(self._backlog) > limit:
            raise HttpError(503, f"more than {limit} requests sent ahead of their answers")

    # --- answers ---------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin the next request if nothing is under way; read on if there is no backlog."""
        if self._is_advancing:
            return
        self._is_advancing = True
        turn_end = 0.0
        while self._current is None and self._backlog:
            if self._writer is None or not self._writer.has_room:
                break
            request, self._held_bytes = self._backlog.popleft()
            self._current = request
            work = self._door.handle(request, self)
            if self._is_current(request):
                self._work = work
            elif self._backlog:  # answered at once, with others behind it
                now = time.thread_time()
                turn_end = turn_end or now + TURN_SECONDS
                if now >= turn_end:
                    self._door.turns.later(self, self._advance)
                    break
        self._is_advancing = False
        transport = self._transport
        if transport is None:
            return
        if self._current is None and not self._backlog:
            if self._refusal is not None:
                self._say_refusal()
            elif self._reader.expects_continue:
                self._reader.expects_continue = False
                if not self._reader.received:
                    transport.write(_CONTINUE)
        if self._reader.rest and not self._backlog:
            self._door.turns.later(self, self._read_on)
        self._count_rest()
        if self._is_reading is bool(self._backlog or self._reader.rest):
            self._is_reading = not self._is_reading
            if self._is_reading:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _is_current(self, request: HttpRequest) -> bool:
        """Asked anew: type checkers, and compiled code with them, take it that what was assigned a
        line before is still there."""
        return self._current is request

    def _count_rest(self) -> None:
        if self._rest_bytes or self._reader.rest:
            size = len(self._reader.rest)
            self._rest_bytes = self._door.budget.unread(self._rest_bytes, size)

    def goes_on(self, work: Work) -> None:
        """The current request's answer takes more work, which can be cancelled like the first."""
        self._work = work

    def reply(self, response: Response) -> None:
        """The answer to the current request."""
        request = self._current
        assert request is not None
        self._work = None
        self._current = None
        self._give_held()
        writer = self._writer
        if writer is None:
            return
        closes = not request.head.keeps_alive
        if not self._door.phase.is_serving:  # the client may come again, to another server
            closes = closes or not (self._backlog or self._refusal)
        head = request.head
        buffers = wire(
            response, closes=closes, is_head=head.method == "HEAD", says_alive=head.says_alive
        )
        writer.write(buffers)
        if self._unread_bytes or not writer.has_room:
            self._count_unread()
        if closes:
            self._drop_backlog()
            self._is_deaf = True
            self._lingers_since = self._loop.time()
            writer.close()
        elif self._stage is Stage.IDLE:
            self._since = self._loop.time()
        if self._backlog or self._refusal or self._reader.expects_continue:
            self._advance()

    def _abandon(self) -> None:
        """Nobody waits for anything of this connection any more."""
        self._is_deaf = True
        self._refusal = None
        self._drop_backlog()
        self._current = None
        self._give_held()
        work, self._work = self._work, None
        if work is not None:
            work.cancel()

    def _give_held(self) -> None:
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self._door.budget.give(held)

    def _drop_backlog(self) -> None:
        left = self._reader.drop() + sum(held for _, held in self._backlog)
        self._backlog.clear()
        self._door.budget.give(left)

    def _refuse(self, fault: HttpError) -> None:
        """Answer, in its turn, what cannot be read any further."""
        self._door.budget.give(self._reader.drop())
        self._is_deaf = True
        self._refusal = fault
        self._reader.expects_continue = False
        self._advance()

    def _say_refusal(self) -> None:
        """And close when the client has heard it: at once, it might find a reset instead."""
        transport, writer = self._transport, self._writer
        if self._refusal is None or transport is None or writer is None:
            return
        writer.write(wire(error_response(self._refusal), closes=True))
        self._refusal = None
        self._lingers_since = self._loop.time()
        if transport.can_write_eof():
            with suppress(OSError):  # it has hung up, which the loop has not noticed yet
                transport.write_eof()

    # --- time ------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way, or its answer."""
        if self._writer is not None and self._writer.unwritten_bytes:
            return True
        return self._current is not None or bool(self._backlog)

    def go_elsewhere(self) -> None:
        """Said with the next answer: between two of them HTTP has no words."""

    def leave(self) -> None:
        """The server ends: close unless something is under way, refuse what is still received."""
        if self._transport is None or self._is_deaf:
            return
        if self._stage is not Stage.IDLE:
            self._refuse(from_fault(draining()))
        elif not self.is_busy:
            self._transport.close()

    def close(self) -> None:
        """When everything that was written has gone; a refused client is let read why, and one
        whose request still runs is told that its time is over."""
        if self._writer is None or self._lingers_since:
            return
        if self._current is None:
            self._writer.close()
            return
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        self._refusal = None
        self._drop_backlog()
        self.reply(error_response(from_fault(draining())))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def check_time(self, now: float) -> None:
        """End the connection when the client is too slow; called about once a second."""
        transport, writer = self._transport, self._writer
        if transport is None or writer is None:
            return
        limits = self._door.limits
        unwritten = writer.unwritten_bytes
        if unwritten:
            if unwritten != self._unwritten_bytes:  # it takes some
                self._unwritten_bytes = unwritten
                self._unwritten_since = now
            elif now - self._unwritten_since > limits.write_seconds:
                transport.abort()
            return
        self._unwritten_bytes = 0
        if self._lingers_since:
            if now - self._lingers_since > LINGER_SECONDS:
                transport.abort()
            return
        age = now - self._since
        if self._stage is Stage.IDLE:
            if age > limits.idle_seconds and not self.is_busy:
                transport.close()
        elif self._is_deaf or not self._is_reading:
            return
        elif self._stage is Stage.HEAD:
            if age > limits.header_seconds:
                text = f"no whole header within {limits.header_seconds:g} s"
                self._refuse(HttpError(408, text))
        elif age > limits.body_seconds + self._reader.received / limits.body_rate_bytes:
            text = (
                f"the body is too slow: expected its first bytes within {limits.body_seconds:g} s,"
                f" then {limits.body_rate_bytes} bytes a second"
            )
            self._refuse(HttpError(408, text))

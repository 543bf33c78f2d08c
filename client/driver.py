"""Session and Connection together, without waiting and without locks: what both clients share.

Owns when to connect, when to give up, and the order of one turn: timers, send, receive. Its callers
own threads or an event loop, and wait on `descriptors` until `deadline_ns`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Final, Literal

import zmq

import naiad
from naiad.client.calls import Completion
from naiad.client.connection import Connection, Received
from naiad.client.deadlines import duration_ns
from naiad.client.memory import ClientMemory, Transport
from naiad.client.session import Phase, Session
from naiad.client.texts import fits_text, unfit_text
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable, error_from_wire
from naiad.protocol.messages import SECRET_BYTES

CONNECT_TIMEOUT_S: Final = 10.0
"""How long requests wait for a server that is not there, unless told otherwise."""
MESSAGES_PER_TURN_MAX: Final = 64
COMPLETIONS_PER_TURN_MAX: Final = 256
"""And no further message is read. They bound one turn, so that what came is acted on while more is
under way."""


class Driver:
    """Everything a client does between two waits.

    Role and patience come as a user gave them, and are judged here.
    """

    def __init__(
        self,
        server: str,
        *,
        role: Any,
        connect_timeout_s: Any,
        context: zmq.Context[zmq.Socket[bytes]] | None,
        transport: Transport,
    ) -> None:
        if not fits_text(role):
            raise unfit_text("role", role)
        self.session = Session(
            os.urandom(SECRET_BYTES), role=role, software=f"naiad {naiad.__version__}",
            pid=os.getpid(),
        )  # fmt: skip
        self.connection = Connection(address_of(server), context)
        self.memory = ClientMemory(self.session, transport, _owner(role), self._lease_ended)
        self._when_lease_ends: weakref.WeakMethod[Callable[[], None]] | None = None
        self.reconnects = 0
        self._is_down = False
        """The monitor said so; what had come before is still to be read."""
        self.is_drained = False
        """After `turn`: nothing came, and nothing was done since that could hide what comes."""
        self._connect_timeout_ns = duration_ns(connect_timeout_s, "connect_timeout_s")
        self._absent_since_ns = 0
        """Since when somebody waits while there is no broker; 0: nobody, or there is one."""

    def turn(self, now_ns: int, out: list[Completion]) -> None:
        """Do everything that can be done now; what was answered or has failed is added to `out`.

        Afterwards `is_drained` says whether to wait for the descriptors or to call again.
        """
        session = self.session
        connection = self.connection
        if session.phase is not Phase.OPEN:
            self._seek(now_ns, out)
            out += session.expire(now_ns)
        elif session.calls.pending or session.requests.timed:
            out += session.expire(now_ns)
        if session.leases.held:
            self.memory.release_ended()
        if connection.outbox or session.has_messages:
            self.send()
        self.is_drained = True
        message = connection.receive()
        if message is not None:
            self._take_in(message, now_ns, out)
        if self._is_down and self.is_drained:
            self.lose()  # not before: the last words came ahead of the end

    def _take_in(self, first: Received, now_ns: int, out: list[Completion]) -> None:
        """This message and those behind it, then whatever they made due."""
        session = self.session
        connection = self.connection
        message: Received | None = first
        left = MESSAGES_PER_TURN_MAX
        while message is not None:
            was_open = session.phase is Phase.OPEN
            session.feed(message[0], message[1], now_ns, out)
            if not was_open and session.phase is Phase.OPEN:
                connection.established()
                self._absent_since_ns = 0
            if session.reset_wanted or session.phase is Phase.ENDED:
                self.lose()
                return
            left -= 1
            if not left or not session.unanswered or len(out) >= COMPLETIONS_PER_TURN_MAX:
                self.is_drained = False
                break
            message = connection.receive()
        if session.has_messages and not connection.outbox:
            self.send()  # WELCOME came, or leases of dropped answers
            self.is_drained = False

    def send(self) -> None:
        """Hand the socket what the session has to say, unless it is full."""
        connection = self.connection
        if connection.outbox:
            connection.flush()
        if connection.is_open and not connection.outbox:
            for message in self.session.messages():
                connection.send(message)

    def when_lease_ends(self, method: Callable[[], None]) -> None:
        """`method` is called, in any thread and inside the garbage collector, when a result in a
        worker's memory is read no more. Its object is not kept alive."""
        self._when_lease_ends = weakref.WeakMethod(method)

    def _lease_ended(self) -> None:
        method = self._when_lease_ends() if self._when_lease_ends is not None else None
        if method is not None:
            method()

    def watch(self) -> None:
        """The monitor's descriptor is readable."""
        self._is_down |= self.connection.is_down()

    def lose(self) -> None:
        """The connection is of no use any more: close it and begin again, with back-off."""
        self._is_down = False
        self.connection.lost()
        self.session.disconnected()
        self.reconnects += 1

    def _seek(self, now_ns: int, out: list[Completion]) -> None:
        """Look for a broker; those who have waited too long for one are told so."""
        session = self.session
        if session.phase is Phase.ENDED:
            return
        if session.unanswered and not self._absent_since_ns:
            self._absent_since_ns = now_ns
        if self._absent_since_ns and now_ns - self._absent_since_ns >= self._connect_timeout_ns:
            self._absent_since_ns = 0
            out += session.fail_all(self._nobody_there())
            return
        connection = self.connection
        if session.phase is Phase.OFFLINE and now_ns >= connection.retry_ns:
            connection.open(now_ns)
            session.connection_made()

    def _nobody_there(self) -> NaiadError:
        refusal = self.session.last_refusal
        seconds = self._connect_timeout_ns / 1e9
        return Unavailable(
            f"no naiad server answered at {self.connection.address} within {seconds:g} s"
            + (f" ({refusal.message})" if refusal else "")
            + "; is it running? start one with 'naiad serve'",
            code=Code.CONNECTION_LOST,
        )

    def deadline_ns(self) -> int:
        """When `turn` has something to do although nothing came; 0: never."""
        session = self.session
        if session.phase is Phase.OPEN and not session.has_deadlines:
            return 0
        soonest = session.deadline_ns()
        if session.phase is not Phase.OPEN and session.phase is not Phase.ENDED:
            times = [self.connection.retry_ns] if session.phase is Phase.OFFLINE else []
            if self._absent_since_ns:
                times.append(self._absent_since_ns + self._connect_timeout_ns)
            if soonest:
                times.append(soonest)
            return max(1, min(times)) if times else 0
        return soonest

    def close(self) -> list[Completion]:
        """Say BYE and let go of the sockets; what was unanswered fails."""
        session = self.session
        if self._is_down or self.connection.is_down():
            session.disconnected()
        is_away = session.phase is not Phase.OPEN
        goodbye = session.close()
        assert session.fault is not None
        out = session.fail_all(session.fault)
        self.memory.close()
        if is_away:
            self.connection.close()
            self.connection.call_after(goodbye)
        else:
            self.connection.close(goodbye)
        return out


def _owner(role: str) -> Literal["client", "gateway"]:
    """Whose the segments are in their names: a role is for people, and may be any text."""
    return "gateway" if role == "gateway" else "client"


def waits_when_full(on_full: object) -> bool:
    """What `on_full` means. Raises RequestError for another word."""
    if on_full not in ("wait", "raise"):
        raise RequestError(f"on_full: expected wait or raise, got {on_full!r:.80}")
    return on_full == "wait"


def address_of(server: str) -> str:
    """The ZeroMQ address for a run directory, or an address as it is.

    Raises RequestError for transports that are not in this release.
    """
    if "://" not in server:
        return Endpoints(os.path.abspath(server)).clients
    if server.startswith("ipc://"):
        return server
    raise RequestError(
        f"cannot connect to {server!r}: this release speaks ipc:// only; give a run directory",
        code=Code.UNSUPPORTED,
    )


def copy_of(fault: NaiadError) -> NaiadError:
    """Raised in several places, one exception object would collect all their tracebacks."""
    return error_from_wire(fault.wire())


def over_budget(session: Session) -> Unavailable:
    """What `submit` raises when it must not or cannot wait for room."""
    requests = session.requests
    return Unavailable(
        f"{session.unanswered} requests with {requests.inline_bytes} inline bytes are in flight;"
        f" the server allows this client {requests.count_max} and {requests.bytes_max} bytes;"
        " wait for answers first",
        code=Code.BUDGET_EXCEEDED,
    )


def timed_out_in_line(session: Session) -> Unavailable:
    """What a request with a timeout comes to that waited for room until that was over."""
    return Unavailable(
        f"request timed out before it could be sent: {over_budget(session).message}",
        code=Code.TIMEOUT,
    )

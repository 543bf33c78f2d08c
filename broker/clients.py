"""The clients' side of the broker's shell: frames to events, actions to frames.

Owns which connection belongs to which session. Every fault in a message is answered to its sender
with REFUSED and disturbs nobody else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from naiad.broker.core import events as e
from naiad.broker.core.world import NamedRegion
from naiad.broker.liveness import Liveness, open_same, start_time
from naiad.broker.log import Log
from naiad.broker.transport import Received, Transport, peer_of
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import Code, InternalError, NaiadError, ProtocolError, RequestError
from naiad.shm.cuda.key import checked, is_cuda
from naiad.shm.objects import describe, is_same, verified

KEY_BYTES: Final = 8
KEY_MASK: Final = 2**63 - 1
FAULTS_LOGGED_MAX: Final = 100
"""Garbage can come without end; after this many lines it is only counted."""

_make: Final = tuple.__new__
"""NamedTuple from a tuple of its fields, for what comes and goes with every request."""


def key_of(secret: bytes) -> int:
    """The name of a session or slot: from its secret, without telling it."""
    return int.from_bytes(blake2b(secret, digest_size=KEY_BYTES).digest(), "little") & KEY_MASK


class Clients:
    def __init__(self, transport: Transport, liveness: Liveness, log: Log) -> None:
        self.transport = transport
        self._liveness = liveness
        self._log = log
        self._session_of: dict[bytes, int] = {}
        self._peer_of: dict[int, bytes] = {}
        self._peer_at: dict[int, bytes] = {}
        """By connection descriptor: how a DISCONNECTED finds its peer. (Not its session, which may
        have moved to a new connection before the old one was seen to end.)"""
        self._started: dict[int, int] = {}
        """When the processes of sessions that the state file names were started."""
        self._faults = 0
        self._was_full = False
        self._late: list[e.Event] = []

    # --- in --------------------------------------------------------------------------------------

    def drain(self) -> list[e.Event]:
        events: list[e.Event] = []
        for received in self.transport.drain():
            try:
                self._take(received, events)
            except NaiadError as fault:
                events.append(e.PeersFaulted(1, int(received.peer in self._session_of)))
                self._refuse(received.peer, fault, events)
            except Exception as raised:
                # Refused for good: it would send the same again to the next broker.
                what = "reading a client's message"
                events.append(e.FaultArose(0, 0, what, raised))
                ours = InternalError(f"{what} failed by a fault of the server itself")
                self._refuse(received.peer, ours, events)
        return events

    def _take(self, received: Received, events: list[e.Event]) -> None:
        payload = received.payload
        sizes = [len(frame) for frame in payload]
        if sum(sizes) > m.INLINE_BYTES_MAX or len(sizes) > m.PAYLOAD_FRAMES_MAX:
            raise ProtocolError(
                f"payload of {sum(sizes)} bytes in {len(sizes)} frames, expected at most"
                f" {m.INLINE_BYTES_MAX} bytes in {m.PAYLOAD_FRAMES_MAX}; use shared memory"
            )
        message = decode(received.header, sizes, m.CLIENT_HEADER_BYTES_MAX)
        session = self._session_of.get(received.peer)
        if type(message) is m.Infer:
            if session is None:
                raise _hello_first()
            events.append(_make(e.RequestsArrived, (session, message.requests, payload)))
        elif type(message) is m.Hello:
            events += self.disconnected()  # a reused descriptor must not be taken for the old one
            self._hello(received, message, events)
        elif session is None:
            raise _hello_first()
        else:
            self._take_rare(session, received, message, events)

    def _take_rare(
        self, session: int, received: Received, message: m.Message, events: list[e.Event]
    ) -> None:
        payload = received.payload
        match message:
            case m.Cancel(ids):
                events.append(e.CancelAsked(session, ids))
            case m.Release(leases):
                events.append(e.LeasesReleased(session, leases))
            case m.RegisterRegion(call, region, gpu):
                events.append(e.RegionOffered(session, call, region, _look_at(region), gpu))
            case m.ForgetRegion(call, ident):
                events.append(e.RegionDropped(session, call, ident))
            case m.Control(call, operation, arguments):
                body = payload[0] if payload else b""
                events.append(e.ControlAsked(session, call, operation, arguments, body))
            case m.Bye():
                self._forget(session)
                events.append(e.SessionEnded(session))
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for clients to send")

    def _hello(self, received: Received, hello: m.Hello, events: list[e.Event]) -> None:
        session = key_of(hello.secret)
        try:
            descriptor = received.descriptor()
            peer = peer_of(descriptor)
        except OSError:
            return  # it is gone already
        old = self._peer_of.get(session)
        if old is not None and old != received.peer:
            self._session_of.pop(old, None)
            self.transport.forget(old)
        earlier = self._session_of.get(received.peer)
        if earlier is not None and earlier != session:
            os.close(peer.pidfd)
            raise ProtocolError("HELLO of another session on the same connection")
        self._session_of[received.peer] = session
        self._peer_of[session] = received.peer
        self._peer_at[descriptor] = received.peer
        self._liveness.watch(session, is_slot=False, pid=peer.pid, pidfd=peer.pidfd)
        events.append(e.SessionOpened(session, hello.role, peer.pid, hello.leases))

    # --- over restarts -------------------------------------------------------------------------

    def complete_sessions(self, sessions: list[dict[str, Any]]) -> None:
        """Add to the scheduler's sessions what proves a process to be the same one later."""
        self._started = {
            entry["session"]: self._started.get(entry["session"]) or start_time(entry["pid"])
            for entry in sessions
        }
        for entry in sessions:
            entry["started"] = self._started[entry["session"]]

    def expect(self, saved: dict[str, Any]) -> list[e.Event]:
        """Watch clients of an earlier broker that may read leased memory; the dead are told."""
        events: list[e.Event] = []
        for entry in saved.get("sessions", ()):
            key, pid = entry["session"], entry["pid"]
            pidfd = open_same(pid, entry["started"])
            if pidfd is None:
                events.append(e.SessionEnded(key))
            else:
                self._started[key] = entry["started"]
                self._liveness.watch(key, is_slot=False, pid=pid, pidfd=pidfd)
        return events

    # --- the gone ------------------------------------------------------------------------------

    def disconnected(self) -> list[e.Event]:
        events: list[e.Event] = []
        for descriptor in self.transport.disconnected():
            peer = self._peer_at.pop(descriptor, None)
            session = None if peer is None else self._session_of.get(peer)
            if session is not None:
                self._forget(session, keep_watching=True)
                events.append(e.SessionLost(session))
        if self.transport.is_full != self._was_full:
            self._was_full = self.transport.is_full
            now = (
                "no more are taken until some end" if self._was_full else "new ones are taken again"
            )
            self._log.write("error", f"connections of clients reach the limit of open files: {now}")
        return events

    def _forget(self, session: int, keep_watching: bool = False) -> None:
        peer = self._peer_of.pop(session, None)
        if peer is not None:
            self._session_of.pop(peer, None)
            self.transport.forget(peer)
        if not keep_watching:
            self._liveness.unwatch(session, is_slot=False)

    def _refuse(self, peer: bytes, fault: NaiadError, events: list[e.Event]) -> None:
        self._faults += 1
        if self._faults <= FAULTS_LOGGED_MAX:
            last = " (later ones are not logged)" if self._faults == FAULTS_LOGGED_MAX else ""
            self._log.write("warning", f"a client was refused: {fault.message}{last}")
        session = self._session_of.get(peer)
        self.transport.send_or_drop(peer, [encode(m.Refused(str(fault.code), fault.message))])
        if session is not None:
            self._forget(session)
            events.append(e.SessionEnded(session))

    def take_late_events(self) -> list[e.Event]:
        """Events that arose while actions were performed."""
        late, self._late = self._late, []
        return late

    # --- out -------------------------------------------------------------------------------------

    def send_answers(self, action: e.SendAnswers) -> None:
        session, answers, regions, frames = action
        message = _make(m.Answers, (self.incarnation, tuple(answers), regions))
        self._send(session, [encode(message), *frames])

    def tell(self, action: e.TellSession) -> None:
        self._send(action.session, [encode(action.message)])

    def reply(self, action: e.SendReply) -> None:
        error = None if action.error is None else action.error.wire()
        frames = [encode(m.Reply(action.call, error))]
        if error is None:
            try:
                frames.append(json.dumps(action.result, separators=(",", ":")).encode())
            except Exception as raised:
                what = "writing the reply to a call"
                self._late.append(e.FaultArose(action.session, action.call, what, raised))
                return
        self._send(action.session, frames)

    def forget_session(self, action: e.ForgetSession) -> None:
        if action.session not in self._peer_of:
            self._liveness.unwatch(action.session, is_slot=False)

    def refuse_session(self, action: e.CloseSession) -> None:
        peer = self._peer_of.get(action.session)
        if peer is not None:
            events: list[e.Event] = []
            self._refuse(peer, action.error, events)
            self._late += events

    def _send(self, session: int, frames: list[bytes]) -> None:
        peer = self._peer_of.get(session)
        if peer is not None and not self.transport.send(peer, frames):
            self._give_up(session)

    def _give_up(self, session: int) -> None:
        """It does not read, or is gone: its answers would pile up without bound."""
        self._forget(session, keep_watching=True)
        self._late.append(e.SessionLost(session))
        if self.transport.unread:
            self._late.append(e.PeersFaulted(0, self.transport.unread))
            self.transport.unread = 0

    def flush(self) -> None:
        for peer in self.transport.flush():
            session = self._session_of.get(peer)
            if session is not None:
                self._give_up(session)

    # --- regions by name -----------------------------------------------------------------------

    def stat_named_region(self, action: e.StatNamedRegion) -> None:
        """Look at the segment behind a registration; the answer is an event."""
        region: m.Region | None = None
        fault: NaiadError | None = None
        try:
            owner = describe(action.key, foreign=True)
            region = owner.region
            if owner.uid != os.getuid():
                region = None
                fault = RequestError(
                    f"shared memory {action.key!r} belongs to another user",
                    code=Code.PERMISSION_DENIED,
                )
        except NaiadError as raised:
            fault = raised
        except Exception as unforeseen:
            what = "the call region_register"
            self._late.append(e.FaultArose(action.session, action.call, what, unforeseen))
            return
        self._late.append(
            e.NamedRegionStated(
                action.session, action.call, action.name, region, fault, action.offset, action.size
            )
        )

    def named_regions_gone(self, named: Mapping[str, NamedRegion]) -> list[e.Event]:
        """Registrations whose segment was unlinked and made anew, or removed, end by themselves."""
        segments = [(name, one) for name, one in named.items() if not is_cuda(one.region)]
        gone = tuple(name for name, one in segments if not is_same(one.region))
        return [e.NamedRegionsGone(gone)] if gone else []

    incarnation: int = 0
    """Set once by the broker's start; part of every message to clients."""


def _look_at(region: m.Region) -> NaiadError | None:
    """What is wrong with a region that a client says is its own, or None."""
    try:
        if is_cuda(region):
            checked(region)
        else:
            verified(region, (os.getuid(),))
    except NaiadError as fault:
        return fault
    return None


def _hello_first() -> ProtocolError:
    return ProtocolError("expected HELLO as the first message of a connection")

"""What clients say: who comes and goes, their requests, cancels, leases and regions.

Owns the life of a session, from its hello to the proof that its process is dead; the other parts
own what it asks for. Control operations are apart (see control).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from naiad.broker.core import events as e
from naiad.broker.core.admission import Admission
from naiad.broker.core.answers import Answers, cancelled_error
from naiad.broker.core.job import JobState
from naiad.broker.core.memory import Memory
from naiad.broker.core.recovery import Recovery
from naiad.broker.core.sessions import Session
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.world import World
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, RequestError, Unavailable

UNHEARD_ABSENCES: Final = 4
"""After so many times the absence limit a restarted broker knows of every lease there is."""


class ClientEvents:
    """One method per event of a client; those of sessions that have ended are ignored."""

    def __init__(
        self,
        world: World,
        answers: Answers,
        admission: Admission,
        withdrawal: Withdrawal,
        memory: Memory,
        recovery: Recovery,
        software: str,
    ) -> None:
        self._world = world
        self._answers = answers
        self._admission = admission
        self._withdrawal = withdrawal
        self._memory = memory
        self._recovery = recovery
        self._software = software

    # --- sessions ----------------------------------------------------------------------

    def session_opened(self, event: e.SessionOpened) -> None:
        world = self._world
        session = world.sessions.get(event.session)
        resumed = session is not None and session.is_heard
        if session is None:
            if len(world.sessions) >= world.limits.sessions_max:
                fault = Unavailable(
                    f"{len(world.sessions)} clients are connected, at most"
                    f" {world.limits.sessions_max}; close some",
                    code=Code.BUDGET_EXCEEDED,
                )
                world.actions.append(e.CloseSession(event.session, fault))
                return
            session = world.sessions[event.session] = Session(event.session, event.role, event.pid)
        self._answers.hold(session)
        session.connected = True
        limits = world.limits
        welcome = m.Welcome(
            world.incarnation, world.server, self._software, limits.session_requests_max,
            limits.session_bytes_max, limits.inline_bytes_max, resumed,
        )  # fmt: skip
        world.actions.append(e.TellSession(session.key, welcome))
        self._answers.reopen(session)
        if not session.is_heard:
            self._memory.holds_only(session, event.leases)
        if event.leases and not session.is_kept:
            session.is_kept = True
            world.actions.append(e.SaveState())
        for arena, request_id in event.leases:
            # 0: after a restart of the broker its worker may come later than the client.
            slot = self._memory.slot_of_arena(arena)
            session.leases[(arena, request_id)] = slot or 0

    def session_lost(self, event: e.SessionLost) -> None:
        session = self._world.sessions.get(event.session)
        if session is None:
            return
        session.connected = False
        session.lost_ns = lost_ns = self._world.now_ns

        def absent() -> None:
            if not session.connected and session.lost_ns == lost_ns:
                self._session_absent(session)

        self._world.at(lost_ns + self._world.limits.absence_ns, absent)

    def _session_absent(self, session: Session) -> None:
        """It stays away, but may be alive (stopped, say) and read or own memory all the same.

        Its queued work is dropped; what it holds ends only when its process is known to be dead.
        """
        for job in list(session.jobs.values()):
            if job.state is JobState.QUEUED:
                self._withdrawal.drop(job)
        holds = session.jobs or session.zombies or session.leases or session.regions
        if not holds or not session.pid:
            self._end_session(session)

    def session_ended(self, event: e.SessionEnded) -> None:
        session = self._world.sessions.get(event.session)
        if session is not None:
            self._end_session(session)

    def _end_session(self, session: Session) -> None:
        """Nobody waits for its answers any more: cancel, forget its memory, end its leases."""
        if session.ended:
            return
        session.ended = True
        self._world.sessions.pop(session.key, None)
        self._world.actions.append(e.ForgetSession(session.key))
        for job in list(session.jobs.values()):
            self._withdrawal.cancel(job, cancelled_error())
        self._memory.session_ended(session)

    # --- over restarts -----------------------------------------------------------------

    def saved(self) -> list[dict[str, Any]]:
        """Sessions that may read what workers lent, for the state file."""
        sessions = self._world.sessions.values()
        return [
            {"session": one.key, "role": one.role, "pid": one.pid}
            for one in sessions
            if one.is_kept
        ]

    def restore(self, saved: Sequence[dict[str, Any]]) -> None:
        """Sessions of an earlier broker. Only a hello, or the proof that its process is dead, tells
        that one reads nothing any more: it may be stopped, and go on reading later."""
        world = self._world
        for entry in saved:
            session = Session(entry["session"], entry["role"], entry["pid"])
            session.connected = session.is_heard = False
            session.is_kept = True
            world.sessions[session.key] = session
        if saved:
            limit_ns = world.now_ns + UNHEARD_ABSENCES * world.limits.absence_ns
            world.at(limit_ns, self._end_unheard)

    def _end_unheard(self) -> None:
        """Every worker has said by now what it lends: who holds none of it is not waited for."""
        for session in list(self._world.sessions.values()):
            if not session.is_heard and not session.leases:
                self._end_session(session)

    # --- requests ----------------------------------------------------------------------

    def requests_arrived(self, event: e.RequestsArrived) -> None:
        session = self._world.sessions.get(event.session)
        if session is None:
            return
        admit = self._admission.admit
        frames = event.frames
        jobs = session.jobs
        for request in event.requests:
            if request.attempt > 1:
                self._recovery.resent(session, request, frames)
            elif request.id in jobs or request.id in session.zombies:
                fault = RequestError(
                    f"request id {request.id} is in flight already; ids are never reused",
                    code=Code.ALREADY_EXISTS,
                )
                self._world.counters.protocol_errors += 1
                self._world.counters.dropped_sessions += 1
                self._world.actions.append(e.CloseSession(session.key, fault))
                return
            else:
                admit(session, request, frames)

    def cancel_asked(self, event: e.CancelAsked) -> None:
        session = self._world.sessions.get(event.session)
        if session is None:
            return
        for request_id in event.ids:
            job = session.jobs.get(request_id)
            if job is not None:
                self._withdrawal.cancel(job, cancelled_error())
            else:
                self._recovery.cancel(session, request_id)

    # --- memory ------------------------------------------------------------------------

    def leases_released(self, event: e.LeasesReleased) -> None:
        session = self._world.sessions.get(event.session)
        if session is not None:
            self._memory.released(session, event.leases)

    def region_offered(self, event: e.RegionOffered) -> None:
        session = self._world.sessions.get(event.session)
        if session is None:
            return
        try:
            self._memory.offered(session, event.call, event.region, event.fault, event.gpu)
        except Exception as raised:
            fault = self._world.blame(raised, "the registration of a region")
            self._world.actions.append(e.SendReply(session.key, event.call, fault, None))

    def region_dropped(self, event: e.RegionDropped) -> None:
        session = self._world.sessions.get(event.session)
        if session is not None:
            self._memory.dropped(session, event.call, event.id)

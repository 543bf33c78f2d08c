"""Clients as the broker knows them: what they have in flight, what memory they gave or hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from naiad.broker.core.accounts import Accounts

if TYPE_CHECKING:
    from naiad.broker.core.events import SendAnswers
    from naiad.broker.core.job import Job
    from naiad.protocol.errors import NaiadError
    from naiad.protocol.messages import Region

UNKNOWN_ARENA: Final = 0


class Session:
    """One client or gateway; the same object over reconnects.

    `jobs` are unanswered requests by id. `regions` maps the client's ids to the broker's.
    `undelivered` are answers that came while the connection was away.
    """

    def __init__(self, key: int, role: str, pid: int) -> None:
        self.key = key
        self.role = role
        self.pid = pid
        self.connected = True
        self.is_heard = True
        """False for one of an earlier broker that has not said hello to this one."""
        self.is_kept = False
        """The state file names it, because it may read what a worker lent it."""
        self.ended = False
        self.lost_ns = 0
        self.jobs: dict[int, Job] = {}
        self.zombies: dict[int, Job] = {}
        """Answered (expired, cancelled) while a worker has them: RELEASED is still owed."""
        self.bytes = 0
        """Inline, of `jobs`: what the broker itself holds for this client."""
        self.accounts = Accounts()
        self.regions: dict[int, Region] = {}
        """The client's id to the region under the broker's own id."""
        self.leases: dict[tuple[int, int], int] = {}
        """(arena id, request id) to the slot that lends it, 0 while that is not known. The arena is
        UNKNOWN_ARENA where only the worker has told, not the client."""
        self.undelivered: list[SendAnswers] = []
        self.released: dict[int, NaiadError | None] = {}
        """RELEASED that came while the connection was away, with the error each was answered with;
        None when that answer waits as well."""
        self.settled: dict[int, NaiadError | None] = {}
        """What was outstanding when the client came back: see Answers.reopen."""

    def leave(self, job: Job) -> None:
        """It has its answer, or is forgotten; harmless for a job that was never taken."""
        if self.jobs.pop(job.request.id, None) is not None:
            self.bytes -= job.inline_bytes
            if job.account is not None:
                self.accounts.give_back(job)

"""The end: accept nothing new, finish what is there, stop every worker, quit.

Owns when it is over, and how: in peace, or because its time was up.
"""

from __future__ import annotations

from naiad.broker.core.answers import Answers
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.events import Quit, SaveState
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.job import JobState
from naiad.broker.core.recovery import Recovery
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.world import World
from naiad.protocol.errors import Code, Unavailable


class Drain:
    """Brings the server to its end, once asked to."""

    def __init__(
        self,
        world: World,
        answers: Answers,
        withdrawal: Withdrawal,
        fleet: Fleet,
        recovery: Recovery,
    ) -> None:
        self._world = world
        self._answers = answers
        self._withdrawal = withdrawal
        self._fleet = fleet
        self._recovery = recovery
        self._is_overdue = False
        self.has_quit = False

    def begin(self, until_ns: int) -> None:
        """Accept nothing new, finish what is there, stop every worker; Quit follows."""
        world = self._world
        if world.draining:
            return
        world.draining = True
        world.log("info", "draining: nothing new is accepted")
        if until_ns != NEVER_NS:
            world.at(until_ns, self._overdue)
        for instance in list(world.instances.values()):
            if instance.slot is None and len(instance.model.queue):
                self._withdrawal.fail_stranded(instance.model, _stopping())
        self._fleet.want(again=True)

    def check(self) -> None:
        """Stop the workers once nothing is in flight, and quit once they are gone."""
        world = self._world
        if self.has_quit or not self._recovery.is_complete:
            return  # an earlier broker's workers are told to stop when they say hello
        for model in dict.fromkeys(instance.model for instance in world.instances.values()):
            if len(model.queue):
                self._withdrawal.fail_stranded(model, _stopping())
        if any(session.jobs for session in world.sessions.values()):
            return
        for slot in list(world.slots.values()):
            if not slot.stopping:
                self._fleet.stop_slot(slot, brief=slot.is_occupied)
        if all(slot.is_lost for slot in world.slots.values()):
            self._end(1 if world.slots or self._is_overdue else 0)

    def _overdue(self) -> None:
        """Kill who still works. Their requests end with the proof of their deaths, not before:
        until then they may write to memory that the client would use again."""
        if self.has_quit:
            return
        world = self._world
        world.log("error", "the drain time is over: requests in flight are given up")
        self._is_overdue = True
        self._fail_queued()
        for slot in world.slots.values():
            self._fleet.kill(slot, "the drain time is over")
        world.at(world.now_ns + world.limits.drain_kill_ns, self._give_up)

    def _give_up(self) -> None:
        """Somebody does not die; what it has is told to nobody."""
        if not self.has_quit:
            self._fail_queued()
            self._end(1)

    def _fail_queued(self) -> None:
        for session in self._world.sessions.values():
            for job in list(session.jobs.values()):
                if job.state is JobState.QUEUED:
                    self._withdrawal.unqueue(job)
                    self._answers.fail(job, _stopping())

    def _end(self, code: int) -> None:
        self.has_quit = True
        self._world.actions.append(SaveState())
        self._world.actions.append(Quit(code))


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping", code=Code.DRAINING)

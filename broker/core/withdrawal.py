"""Requests that end without a result: their time is over, nobody waits for them, or nothing serves.

Owns taking jobs out of queues before their turn, and telling workers to leave out what they have.
Whether a request may still run after a worker's death is not decided here (see deaths).
"""

from __future__ import annotations

from naiad.broker.core.answers import Answers, timeout_error
from naiad.broker.core.events import TellSlot
from naiad.broker.core.job import ANYWHERE, Job, JobState
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.world import World
from naiad.protocol import messages as m
from naiad.protocol.errors import NaiadError


class Withdrawal:
    """Ends jobs before their turn."""

    def __init__(self, world: World, answers: Answers) -> None:
        self._world = world
        self._answers = answers

    def expire(self) -> None:
        """Answer every request whose time in the queue is over."""
        for item in self._world.deadlines.pop_due(self._world.now_ns):
            assert isinstance(item, Job)
            job = item
            model = job.model
            policy = model.level_policy(job.priority)
            if policy.delays and (job.suspect or job.state is JobState.EARLY):
                job.deadline_ns = 0  # it stands before or outside the levels
            elif policy.delays:
                model.queue.remove(job)
                job.level = policy.rank + 1
                job.deadline_ns = 0
                model.queue.push(job)
            elif job.state is JobState.QUEUED:
                model.queue.remove(job)
                self._answers.withdraw(job, timeout_error())
            elif job.state is JobState.EARLY:
                model.queue.level_of(job).early -= 1
                self._answers.abandon(job, timeout_error())
                self._tell_abandoned(job)
            self._world.dirty[model] = None

    def cancel(self, job: Job, fault: NaiadError) -> None:
        """End a job with CANCELLED: at once when queued, by word to its worker when that has it."""
        model = job.model
        if job.state is JobState.QUEUED:
            self.unqueue(job)
            self._answers.withdraw(job, fault)
        else:
            if job.state is JobState.EARLY:
                self._world.uncount_early(job)
            self._answers.abandon(job, fault)
            self._tell_abandoned(job)
        self._world.wake(model)

    def drop(self, job: Job) -> None:
        """Forget a queued job unanswered: its client is away and asks again if it returns."""
        self.unqueue(job)
        self._answers.finish(job)
        self._world.wake(job.model)

    def fail_queued(self, model: ModelVersion, fault: NaiadError) -> None:
        """End everything that waits for a model version with an error."""
        for job in list(model.queue.jobs()):
            self.unqueue(job)
            self._answers.fail(job, fault)

    def fail_stranded(self, model: ModelVersion, fault: NaiadError) -> None:
        """End what waits for a GPU on which no instance of the model has a worker any more; all of
        it where none has one anywhere."""
        seen = {one.gpu for one in model.instances if one.slot is not None}
        if ANYWHERE in seen or (seen and seen == {one.gpu for one in model.instances}):
            return
        for job in list(model.queue.jobs()):
            if not seen or (job.gpu != ANYWHERE and job.gpu not in seen):
                self.unqueue(job)
                self._answers.fail(job, fault)

    def unqueue(self, job: Job) -> None:
        """Take a queued job out; the caller says what becomes of it."""
        job.model.queue.remove(job)
        if job.deadline_ns:
            self._world.deadlines.discard(job)

    def _tell_abandoned(self, job: Job) -> None:
        batch = job.batch
        if batch is not None:
            message = m.Abandon(((job.session.key, job.request.id),))
            self._world.actions.append(TellSlot(batch.slot.key, message, []))

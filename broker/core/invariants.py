"""What must hold between two calls of the scheduler; tests assert it after every step."""

from __future__ import annotations

from naiad.broker.core.job import JobState
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.world import World


def check_invariants(world: World) -> None:
    """Raises AssertionError with what does not."""
    placed = {id(job) for job in world.jobs()}
    for model in {one.model for one in world.instances.values()}:
        _check_queue(model, placed)
        _check_batches(model)
        _check_lost(world, model)
    for session in world.sessions.values():
        for ident, job in session.jobs.items():
            assert job.request.id == ident
            assert job.state in (JobState.QUEUED, JobState.EARLY, JobState.EXECUTING), job
        inline = sum(job.inline_bytes for job in session.jobs.values())
        assert session.bytes == inline, f"{session.bytes} bytes counted, {inline} there"
        session.accounts.check_invariants(list(session.jobs.values()))


def _check_queue(model: ModelVersion, placed: set[int]) -> None:
    model.queue.check_invariants()
    for job in model.queue.jobs():
        assert job.state is JobState.QUEUED, job
        assert id(job) in placed, f"{job} is queued but its session does not know it"


def _check_batches(model: ModelVersion) -> None:
    early = 0
    for instance in model.instances:
        slot = instance.slot
        if slot is None:
            continue
        assert slot.instance is instance
        for batch in slot.batches():
            rows = sum(job.rows for job in batch.jobs if job is not None)
            assert batch.keys or rows <= max(1, model.batch_policy.rows_max)
        assert slot.current or not slot.ahead, "an early batch without a running one"
        for batch in slot.ahead:
            jobs = [job for job in batch.jobs if job is not None]
            early += sum(job.state is JobState.EARLY for job in jobs)
    counted = sum(level.early for level in model.queue.all_levels())
    assert counted == early, f"{model}: {counted} early jobs counted, {early} there"


def _check_lost(world: World, model: ModelVersion) -> None:
    for instance in model.instances:
        count = sum(slot.lost_of is instance for slot in world.slots.values())
        assert count <= world.limits.lost_workers_max, f"{instance.name}: {count} lost workers"

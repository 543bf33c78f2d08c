"""What must hold after every decision of the scheduler, and what must be left at the end."""

from __future__ import annotations

from collections import Counter

from naiad.broker.core import events as e
from naiad.broker.core.accounts import described_bytes
from naiad.broker.core.instances import Slot
from naiad.broker.core.job import ANYWHERE, Job
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.scheduler import Scheduler
from naiad.broker.core.world import NAMED_REGION_BASE
from support.simulated_ledger import Violation

LOAD_TIMEOUT_NS = 600 * 10**9


def check_step(scheduler: Scheduler, now_ns: int, actions: list[e.Action]) -> None:
    """Run after each handle(): the core's own invariants and the promises about time and order."""
    if any(type(action) is e.Quit for action in actions):
        return
    scheduler.check_invariants()
    world = scheduler.world
    deadline_ns = scheduler.deadline_ns()
    if world.dirty:
        raise Violation(f"{list(world.dirty)} are still to be looked at")
    if deadline_ns <= now_ns:
        raise Violation(f"asked again for {deadline_ns}, it is {now_ns}")
    waiting = 0
    models = _models(scheduler)
    for model in models:
        _check_sums(model)
        if len(model.queue):
            for gpu in {_gpu(slot) for slot in model.idle}:
                _check_delay(model, gpu, now_ns, deadline_ns)
        for job in model.queue.jobs():
            if job.deadline_ns:
                waiting += 1
                if job.deadline_ns <= now_ns:
                    raise Violation(f"{job} should have timed out", _token(job))
    if waiting > len(world.deadlines):
        raise Violation(f"{waiting} requests have deadlines, {len(world.deadlines)} are watched")
    for action in actions:
        if type(action) is e.SendBatch:
            _check_order(scheduler, action)
    for session in world.sessions.values():
        if len(session.accounts):
            _check_budgets(scheduler, list(session.jobs.values()))


def _check_budgets(scheduler: Scheduler, jobs: list[Job]) -> None:
    """No user has more in flight than he may, but for what came again after something was lost."""
    limits = scheduler.world.limits
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for job in jobs:
        key = job.request.accounting_key
        if key and job.request.attempt == 1:
            counts[key] += 1
            sizes[key] += described_bytes(job.request)
            if counts[key] > (limits.user_requests_max or len(jobs)):
                raise Violation(f"{counts[key]} requests of one user", _token(job))
            if limits.user_bytes_max and sizes[key] > limits.user_bytes_max:
                raise Violation(f"{sizes[key]} bytes of one user", _token(job))


def _check_sums(model: ModelVersion) -> None:
    """One thing counted in several forms: all of them say the same."""
    counted = model.statistics
    executions = {
        "executions": counted.execution_count,
        "by what closed them": sum(counted.batch_reasons.values()),
        "by batch size": sum(one.count for one in counted.batches.values()),
        "by time": sum(counted.compute_times),
    }
    successes = {
        "successes": counted.success_count,
        "by time": sum(counted.request_times),
        "by time in the queue": sum(counted.queue_times),
    }
    failures = {"failures": counted.fail_count, "by code": sum(counted.failures.values())}
    for sums in (executions, successes, failures):
        if len(set(sums.values())) > 1:
            raise Violation(f"{model} counts one thing differently: {sums}")
    begun = [one.slot.current for one in model.instances if one.slot is not None]
    executing = sum(len(batch.jobs) for batch in begun if batch is not None)
    if model.executing != executing:
        raise Violation(f"{model} counts {model.executing} executing, {executing} are")


def _models(scheduler: Scheduler) -> list[ModelVersion]:
    found = {instance.model: None for instance in scheduler.world.instances.values()}
    found.update(dict.fromkeys(scheduler.world.retiring))
    for model in scheduler.world.models.values():
        found.update(dict.fromkeys(model.all_versions()))
    return list(found)


def _gpu(slot: Slot) -> int:
    """What its instance sees."""
    assert slot.instance is not None
    return slot.instance.gpu


def _check_delay(model: ModelVersion, gpu: int, now_ns: int, deadline_ns: int) -> None:
    """While an instance is idle nothing that it can execute waits longer than the delay, and
    without one not at all."""
    suspect = next((one for one in model.queue.suspects if _sees(gpu, one)), None)
    if suspect is not None:
        raise Violation(f"{suspect} waits though an instance is idle", _token(suspect))
    jobs = [one for one in model.queue.jobs() if _sees(gpu, one)]
    if not jobs:
        return
    rank = min(one.level for one in jobs)
    job = min((one for one in jobs if one.level == rank), key=lambda one: one.enqueued_ns)
    head_ns = job.enqueued_ns
    due_ns = head_ns + model.batch_policy.delay_ns
    if now_ns >= due_ns:
        raise Violation(f"{job} waits since {head_ns} though an instance is idle", _token(job))
    if deadline_ns > due_ns:
        raise Violation(f"{job} is due at {due_ns}, but asked for {deadline_ns}", _token(job))


def _sees(gpu: int, job: Job) -> bool:
    return gpu == ANYWHERE or job.only_on in (gpu, ANYWHERE)


def _check_order(scheduler: Scheduler, action: e.SendBatch) -> None:
    """No request goes while one of the same key and a higher level waits."""
    slot = scheduler.world.slots.get(action.slot)
    if slot is None:
        return
    for batch in slot.batches():
        jobs = [job for job in batch.jobs if job is not None]
        if batch.id != action.batch.id or not jobs or jobs[0].suspect:
            continue
        if any(jobs[0].model.level_policy(level).size_max for level in range(5)):
            continue  # a full queue makes room in the midst of a message, before all is admitted
        if len({job.key for job in jobs}) > 1:
            raise Violation(f"batch {batch.id} mixes keys {jobs}", _token(jobs[0]))
        if len({job.only_on for job in jobs}) > 1:
            raise Violation(f"batch {batch.id} mixes GPUs {jobs}", _token(jobs[0]))
        lowest = max(job.level for job in jobs)
        for other in jobs[0].model.queue.jobs():
            if other.suspect or other.number > batch.id or not _sees(_gpu(slot), other):
                continue
            is_alike = (other.key, other.only_on) == (jobs[0].key, jobs[0].only_on)
            if other.level < (lowest if is_alike else jobs[0].level):
                raise Violation(f"{other} was passed over by {jobs}", _token(other))


def _token(job: Job) -> int:
    return int(job.request.label)


def check_empty(scheduler: Scheduler) -> None:
    """After every client has gone: nothing of them is left anywhere."""
    world = scheduler.world
    known_regions = set(world.regions)
    left: dict[str, object] = {
        "sessions": {key for key in world.sessions if key != 1},
        "deadlines": len(world.deadlines),
        "recovering": world.recovering,
        "regions": [key for key in world.regions if key < NAMED_REGION_BASE],
        "retiring": world.retiring,
        "queued": [job for model in _models(scheduler) for job in model.queue.jobs()],
        "executing": [model for model in _models(scheduler) if model.executing],
        "early": [
            level for model in _models(scheduler) for level in model.queue.all_levels()
            if level.early or level.count
        ],
        "batches": [slot.name for slot in world.slots.values() if any(slot.batches())],
        "held": [slot.name for slot in world.slots.values() if slot.held],
        "mapped": [slot.name for slot in world.slots.values() if slot.regions - known_regions],
    }  # fmt: skip
    known = {id(model) for model in _models(scheduler)}
    wanted = {id(v) for model in world.models.values() for v in model.versions.values()}
    left["forgotten versions"] = len(known - wanted)
    left = {what: found for what, found in left.items() if found}
    if left:
        raise Violation(f"left at the end: {left}")

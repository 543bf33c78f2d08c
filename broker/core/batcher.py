"""Which requests go next, or when to look again: Triton's rules of preferred sizes and delay.

Source of the behaviour: Triton's dynamic batcher. Different here: a batch takes requests of one key
wherever they stand in the queue, not only a contiguous prefix, and users by turns (see lanes).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.job import ANYWHERE, Job
from naiad.broker.core.lanes import Flow, Lane, Level, next_flow, oldest_lanes
from naiad.broker.core.queue import ModelQueue

FULL: Final = "full"
"""The next request, if there is one, does not fit."""
PREFERRED: Final = "preferred"
DELAY: Final = "delay"
"""The oldest had waited for the model's delay."""
IDLE: Final = "idle"
"""The model has no delay: an instance was idle and took what there was."""
ALONE: Final = "alone"
"""The model does not batch, or the request is a suspect."""
EARLY: Final = "early"
"""Sent ahead of the running batch's end, whatever else closed it."""
REASONS: Final = (FULL, PREFERRED, DELAY, IDLE, ALONE, EARLY)
LANES_EXAMINED_MAX: Final = 16
"""While the next lane waits for its delay, at most this many others may overtake it."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How requests of one model are put together. Sizes in rows (dim 0), delay in nanoseconds.

    `batching` False is the default scheduler: every request is executed alone, short ones perhaps
    in a series (see choose).
    """

    batching: bool = False
    rows_max: int = 1
    preferred: tuple[int, ...] = ()
    delay_ns: int = 0


Choice = tuple[list[Job], int, str]
"""The jobs to send now (may be empty), when to ask again (NEVER_NS: at the next event), and what
closed the batch ("" for none)."""


def choose(
    queue: ModelQueue, policy: BatchPolicy, now_ns: int, series: int = 1, gpu: int = ANYWHERE
) -> Choice:
    """The next batch. Nothing is removed from the queue; the caller takes the jobs out.

    Without batching it is a series: up to `series` requests that are sent at once, each as a batch
    of its own. `gpu` is what the instance sees, where others of its model see another one.
    """
    if queue.suspects:
        suspect = queue.suspect_for(gpu)
        if suspect is not None:
            return [suspect], NEVER_NS, ALONE
    levels = queue.levels(gpu)
    if not levels:
        return [], NEVER_NS, ""
    urgent = levels
    if levels[0].rank != levels[-1].rank:
        urgent = [level for level in levels if level.rank == levels[0].rank]
    flow = next_flow(urgent)
    if not policy.batching:
        return _series(urgent, flow, policy, series), NEVER_NS, ALONE
    lane = flow.lane
    jobs, wake_ns, reason = _from_lane(levels, lane, policy, now_ns)
    has_one_lane = len(urgent) == 1 and len(urgent[0].lanes) == 1
    if jobs or policy.delay_ns == 0 or has_one_lane:
        return jobs, wake_ns, reason
    for other in oldest_lanes(urgent, LANES_EXAMINED_MAX):
        if other is lane:
            continue
        jobs, other_wake_ns, reason = _from_lane(levels, other, policy, now_ns)
        if jobs:
            return jobs, NEVER_NS, reason
        wake_ns = min(wake_ns, other_wake_ns)
    return [], wake_ns, ""


def _series(urgent: list[Level], flow: Flow, policy: BatchPolicy, count: int) -> list[Job]:
    """The next jobs in order. One alone where turns go over several lanes or sizes, or if it must
    not run twice: results before a request that kills its worker may be lost with it."""
    head = flow.head()
    if count == 1 or not head.retryable:
        return [head]
    has_lanes = len(urgent) > 1 or len(urgent[0].lanes) > 1
    if (has_lanes or policy.rows_max > 1) and _has_others(urgent, flow):
        return [head]
    found: list[Job] = []
    for job in islice(flow.lane.in_turn(count), count):
        if not job.retryable:
            break
        found.append(job)
    return found


def _has_others(levels: list[Level], flow: Flow) -> bool:
    """Whether other users than this one's wait there."""
    user = flow.share.key
    return any(len(level.shares) > 1 or user not in level.shares for level in levels)


def _from_lane(levels: list[Level], lane: Lane, policy: BatchPolicy, now_ns: int) -> Choice:
    due_ns = lane.head().enqueued_ns + policy.delay_ns
    preferred = policy.preferred
    lanes = [lane]
    waiting_rows = lane.rows
    if len(levels) > 1:
        for level in levels:
            below = level.lanes.get(lane.key) if level.only_on == lane.only_on else None
            if below is not None and below is not lane:
                lanes.append(below)
                waiting_rows += below.rows
                due_ns = min(due_ns, below.head().enqueued_ns + policy.delay_ns)
    overdue = now_ns >= due_ns
    if not overdue and preferred and waiting_rows < preferred[0] and waiting_rows < policy.rows_max:
        return [], due_ns, ""

    jobs: list[Job] = []
    rows = 0
    best = 0
    full = False
    for source in lanes:
        for job in source.in_turn(policy.rows_max - rows):
            if rows + job.rows > policy.rows_max:
                full = True
                break
            jobs.append(job)
            rows += job.rows
            if rows in preferred:
                best = len(jobs)
        if full:
            break
    full = full or rows == policy.rows_max
    if best and (not overdue or policy.delay_ns == 0):
        return jobs[:best], NEVER_NS, FULL if full and best == len(jobs) else PREFERRED
    if full:
        return jobs, NEVER_NS, FULL
    if overdue:
        return jobs, NEVER_NS, DELAY if policy.delay_ns else IDLE
    return [], due_ns, ""

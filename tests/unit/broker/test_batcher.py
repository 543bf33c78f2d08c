"""Which requests go next: Triton's preferred sizes and delay, with a look past the head."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from naiad.broker.core.batcher import BatchPolicy, choose
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.queue import ModelQueue
from support.simulated_jobs import job

US = 1_000


class Case(NamedTuple):
    """`queued` are (rows, age in µs) of one key, oldest first; `sends` how many go, -1: none yet.

    `again_us` is when to look again, from now; 0 is never. `reason` is what closed the batch.
    """

    name: str
    policy: BatchPolicy
    queued: list[tuple[int, int]]
    sends: int
    again_us: int = 0
    reason: str = ""


def policy(*preferred: int, rows: int = 8, delay_us: int = 0) -> BatchPolicy:
    return BatchPolicy(True, rows, tuple(preferred) or (rows,), delay_us * US)


CASES = [
    Case("the default scheduler runs each request alone", BatchPolicy(rows_max=8), [(1, 0)] * 3, 1,
         reason="alone"),
    Case("no delay: what is there goes", policy(), [(1, 0)] * 3, 3, reason="idle"),
    Case("no delay: never more than the limit", policy(rows=4), [(1, 0)] * 9, 4, reason="full"),
    Case("no delay: the largest preferred size that can be had", policy(2, 4), [(1, 0)] * 7, 4,
         reason="preferred"),
    Case("no delay: what does not reach a preferred size", policy(4), [(1, 0)] * 3, 3,
         reason="idle"),
    Case("delay: alone it waits for its delay", policy(delay_us=100), [(1, 30)], -1, 70),
    Case("delay: counted from the oldest", policy(delay_us=100), [(1, 90), (1, 0)], -1, 10),
    Case("delay: a full batch goes at once", policy(rows=4, delay_us=100), [(1, 0)] * 4, 4,
         reason="full"),
    Case("delay: a preferred size goes at once", policy(4, delay_us=100), [(1, 0)] * 4, 4,
         reason="preferred"),
    Case("delay: beyond a preferred size the rest stays", policy(4, delay_us=100), [(1, 0)] * 5, 4,
         reason="preferred"),
    Case("delay: the larger preferred size wins", policy(2, 6, delay_us=100), [(1, 0)] * 7, 6,
         reason="preferred"),
    Case("delay: between two, the smaller goes", policy(2, 6, delay_us=100), [(1, 0)] * 5, 2,
         reason="preferred"),
    Case("delay: below them all it waits", policy(4, delay_us=100), [(1, 50)] * 3, -1, 50),
    Case("overdue: everything goes, also past a preferred size", policy(4, delay_us=100),
         [(1, 100)] * 6, 6, reason="delay"),
    Case("overdue: up to the limit", policy(4, rows=8, delay_us=100), [(1, 100)] * 12, 8,
         reason="full"),
    Case("rows count, not requests", policy(rows=8), [(3, 0), (3, 0), (3, 0)], 2, reason="full"),
    Case("one request may fill a batch", policy(rows=8, delay_us=100), [(8, 0), (1, 0)], 1,
         reason="full"),
    Case("a request that does not fit closes the batch", policy(rows=8, delay_us=100),
         [(5, 0), (4, 0)], 1, reason="full"),
    Case("a preferred size may be reached by rows", policy(6, rows=8, delay_us=100),
         [(2, 0), (4, 0), (1, 0)], 2, reason="preferred"),
    Case("a preferred size that is jumped over does not count", policy(3, rows=8, delay_us=100),
         [(2, 40), (2, 0)], -1, 60),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_triton_rules(case: Case) -> None:
    now_ns = 1_000_000 * US
    queue = ModelQueue()
    for number, (rows, age_us) in enumerate(case.queued):
        queue.push(job(number, rows=rows, enqueued_ns=now_ns - age_us * US))
    jobs, again_ns, reason = choose(queue, case.policy, now_ns)
    assert [one.number for one in jobs] == list(range(max(0, case.sends)))
    expected_ns = now_ns + case.again_us * US if case.again_us else NEVER_NS
    assert again_ns == expected_ns
    assert reason == case.reason


def test_an_empty_queue_has_nothing_and_asks_for_nothing() -> None:
    assert choose(ModelQueue(), policy(), 0) == ([], NEVER_NS, "")


def test_a_batch_has_one_key_and_takes_it_from_behind_others() -> None:
    queue = ModelQueue()
    for number, key in enumerate("abab"):
        queue.push(job(number, key=key))
    jobs, *_ = choose(queue, policy(), 0)
    assert [one.number for one in jobs] == [0, 2]


def test_a_full_lane_passes_one_that_waits_for_its_delay() -> None:
    queue = ModelQueue()
    queue.push(job(0, key="waits"))
    for number in range(1, 5):
        queue.push(job(number, key="full", enqueued_ns=10))
    jobs, *_ = choose(queue, policy(rows=4, delay_us=100), 20)
    assert [one.number for one in jobs] == [1, 2, 3, 4]


def test_the_soonest_of_all_lanes_is_asked_for() -> None:
    queue = ModelQueue()
    queue.push(job(0, key="a", enqueued_ns=30 * US))
    queue.push(job(1, key="b", enqueued_ns=10 * US))
    assert choose(queue, policy(delay_us=100), 40 * US) == ([], 110 * US, "")


def test_levels_are_strict_and_a_batch_is_filled_from_lower_ones() -> None:
    queue = ModelQueue()
    queue.push(job(0, level=4))
    queue.push(job(1, level=2))
    queue.push(job(2, level=2, key="other"))
    jobs, *_ = choose(queue, policy(rows=8), 0)
    assert [one.number for one in jobs] == [1, 0]


def test_a_lower_level_that_is_overdue_makes_the_batch_overdue() -> None:
    queue = ModelQueue()
    queue.push(job(0, level=4, enqueued_ns=0))
    queue.push(job(1, level=2, enqueued_ns=90 * US))
    jobs, *_ = choose(queue, policy(delay_us=100), 100 * US)
    assert [one.number for one in jobs] == [1, 0]


def test_suspects_come_first_and_alone() -> None:
    queue = ModelQueue()
    queue.push(job(0))
    suspect = job(1)
    suspect.suspect = True
    queue.push_front(suspect)
    jobs, *_ = choose(queue, policy(), 0)
    assert jobs == [suspect]


@pytest.mark.parametrize("seed", range(25))
def test_nothing_waits_past_its_delay_and_no_batch_is_too_large(seed: int) -> None:
    """Whatever is queued: either something goes, or the time asked for is the oldest one's due."""
    random = Random(seed)
    rows_max = random.choice((1, 4, 8))
    preferred = sorted(random.sample(range(1, rows_max + 1), random.randint(1, min(3, rows_max))))
    rule = policy(*preferred, rows=rows_max, delay_us=random.choice((0, 50, 500)))
    queue = ModelQueue()
    now_ns = 0
    for number in range(300):
        now_ns += random.randint(0, 100) * US
        queue.push(
            job(number, key=random.randrange(3), rows=random.randint(1, rows_max),
                level=random.choice((2, 4)), enqueued_ns=now_ns)
        )  # fmt: skip
        while len(queue):
            jobs, again_ns, _ = choose(queue, rule, now_ns)
            top = next(iter(queue.levels()))
            due_ns = top.oldest_ns() + rule.delay_ns
            if not jobs:
                assert now_ns < due_ns
                assert now_ns < again_ns <= due_ns
                break
            assert sum(one.rows for one in jobs) <= rows_max
            assert len({one.key for one in jobs}) == 1
            assert jobs == sorted(jobs, key=lambda one: one.level)
            for one in jobs:
                queue.remove(one)
            queue.check_invariants()

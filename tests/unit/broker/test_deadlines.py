"""Deadlines: the next one is always known, the due ones come in order, cancelled ones never."""

from __future__ import annotations

from random import Random

import pytest

from naiad.broker.core.deadlines import LANES_MAX, NEVER_NS, Deadlines
from naiad.broker.core.job import Job
from support.simulated_jobs import job


def numbers(items: object) -> list[int]:
    return sorted(one.number for one in items)  # type: ignore[attr-defined]


def test_nothing_is_due_of_nothing() -> None:
    deadlines = Deadlines()
    assert deadlines.next_ns() == NEVER_NS
    assert deadlines.pop_due(10**18) == []


def test_each_timeout_has_its_own_order_and_the_soonest_counts() -> None:
    deadlines = Deadlines()
    deadlines.add(job(1, enqueued_ns=0, timeout_ns=100))
    deadlines.add(job(2, enqueued_ns=10, timeout_ns=50))
    assert deadlines.next_ns() == 60
    assert numbers(deadlines.pop_due(60)) == [2]
    assert deadlines.next_ns() == 100
    assert deadlines.pop_due(99) == []
    assert numbers(deadlines.pop_due(100)) == [1]
    assert len(deadlines) == 0


def test_a_cancelled_one_is_not_due() -> None:
    deadlines = Deadlines()
    one, two = job(1, timeout_ns=10), job(2, timeout_ns=10, enqueued_ns=5)
    deadlines.add(one)
    deadlines.add(two)
    deadlines.discard(one)
    deadlines.discard(one)
    assert deadlines.next_ns() == 15
    assert numbers(deadlines.pop_due(100)) == [2]


def test_one_that_comes_back_older_than_its_lane_is_found_first() -> None:
    deadlines = Deadlines()
    old, new = job(1, enqueued_ns=0, timeout_ns=100), job(2, enqueued_ns=50, timeout_ns=100)
    deadlines.add(old)
    deadlines.discard(old)
    deadlines.add(new)
    deadlines.add(old)
    assert deadlines.next_ns() == 100
    assert numbers(deadlines.pop_due(149)) == [1]
    assert deadlines.next_ns() == 150


@pytest.mark.parametrize("distinct", [1, LANES_MAX, 3 * LANES_MAX])
@pytest.mark.parametrize("seed", range(4))
def test_like_a_sorted_list(seed: int, distinct: int) -> None:
    random = Random(seed)
    deadlines = Deadlines()
    here: dict[int, Job] = {}
    now_ns = 0
    for number in range(1, 1500):
        now_ns += random.randint(0, 3)
        one = job(number, enqueued_ns=now_ns, timeout_ns=10 + random.randrange(distinct))
        deadlines.add(one)
        here[number] = one
        if random.random() < 0.4:
            gone = here.pop(random.choice(list(here)))
            deadlines.discard(gone)
        assert len(deadlines) == len(here)
        assert deadlines.next_ns() == min((x.deadline_ns for x in here.values()), default=NEVER_NS)
        if random.random() < 0.3:
            due = [x for x in here.values() if x.deadline_ns <= now_ns]
            assert numbers(deadlines.pop_due(now_ns)) == numbers(due)
            for x in due:
                del here[x.number]

"""The queue of one model: lanes by key, levels by rank, oldest head first, suspects before all."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from naiad.broker.core.job import Job
from naiad.broker.core.lanes import Level
from naiad.broker.core.queue import ModelQueue
from support.simulated_jobs import job


def pushed(level: Level, *jobs: tuple[int, str, int]) -> None:
    for number, key, enqueued_ns in jobs:
        level.push(job(number, key=key, enqueued_ns=enqueued_ns), front=False)


def test_a_lane_that_was_alone_keeps_its_turn_when_another_comes() -> None:
    level = Level(0)
    pushed(level, (1, "a", 10))
    assert level.next_flow().lane.key == "a"
    pushed(level, (2, "b", 20))
    assert level.next_flow().lane.key == "a"


def test_a_steady_stream_of_other_keys_does_not_starve_a_lane() -> None:
    level = Level(0)
    pushed(level, (1, "patient", 1))
    served = []
    for number in range(2, 10):
        pushed(level, (number, f"k{number}", number))
        lane = level.next_flow().lane
        served.append(lane.key)
        level.remove(lane.head())
        level.next_flow()
    assert served[0] == "patient"


def test_a_job_that_comes_back_gets_a_new_lane_beside_its_old_note() -> None:
    level = Level(0)
    pushed(level, (1, "a", 10), (2, "b", 10))
    returning = level.lanes["a"].head()
    level.next_flow()
    level.remove(returning)
    level.push(returning, front=True)
    level.push(job(3, key="c", enqueued_ns=10), front=False)
    assert level.next_flow().lane.key == "a"


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_lane_is_the_one_whose_head_waited_longest(seed: int) -> None:
    random = Random(seed)
    level = Level(0)
    here: dict[int, Job] = {}
    for number in range(1, 400):
        if here and random.random() < 0.5:
            gone = random.choice(list(here.values()))
            level.remove(gone)
            del here[gone.number]
        else:
            one = job(number, key=random.randrange(6), enqueued_ns=number // 3)
            here[number] = one
            level.push(one, front=False)
        if here:
            heads = [lane.head() for lane in level.lanes.values()]
            oldest = min(heads, key=lambda head: (head.enqueued_ns, head.number))
            assert level.next_flow().head() is oldest
            assert level.count == len(here)


def ranks(queue: ModelQueue) -> Iterator[int]:
    return (level.rank for level in queue.levels())


def test_levels_come_by_rank_and_empty_ones_not_at_all() -> None:
    queue = ModelQueue()
    for number, level in enumerate((6, 2, 4, 2)):
        queue.push(job(number, level=level))
    assert list(ranks(queue)) == [2, 4, 6]
    queue.remove(next(iter(queue.jobs())))
    queue.remove(next(iter(queue.jobs())))
    assert list(ranks(queue)) == [4, 6]


def test_a_job_pushed_to_the_front_is_the_head_of_its_lane() -> None:
    queue = ModelQueue()
    queue.push(job(5))
    queue.push_front(job(3))
    assert [one.number for one in queue.jobs()] == [3, 5]
    queue.check_invariants()


def test_suspects_stand_outside_the_levels() -> None:
    queue = ModelQueue()
    queue.push(job(1))
    suspect = job(2)
    suspect.suspect = True
    queue.push_front(suspect)
    assert (len(queue), queue.queued_at(0), list(queue.suspects)) == (2, 1, [suspect])
    queue.remove(suspect)
    assert len(queue) == 1


def test_early_jobs_count_as_queued() -> None:
    queue = ModelQueue()
    queue.push(job(1, level=2))
    queue.level(2).early += 2
    assert queue.queued_at(2) == 3
    assert queue.queued_at(4) == 0


def test_the_longest_wait_is_that_of_any_lane() -> None:
    queue = ModelQueue()
    assert queue.oldest_ns() == 0
    queue.push(job(1, level=2, enqueued_ns=50))
    queue.push(job(2, level=0, enqueued_ns=70))
    assert queue.oldest_ns() == 50

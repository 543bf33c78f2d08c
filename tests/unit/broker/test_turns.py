"""Users take turns: one request each, whoever had his turn goes behind all others who wait."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from naiad.broker.core.batcher import BatchPolicy, choose
from naiad.broker.core.job import Job
from naiad.broker.core.queue import ModelQueue
from support.simulated_bench import CLIENT, MS, OTHER, Bench, batching, config, parameters
from support.simulated_jobs import job

ALONE = BatchPolicy()


def one(number: int, user: str, **fields: object) -> Job:
    made = job(number, enqueued_ns=number, **fields)  # type: ignore[arg-type]
    made.fairness_key = user
    return made


def queued(*users: str, **fields: object) -> ModelQueue:
    """One job of each of these, in this order."""
    queue = ModelQueue()
    for number, user in enumerate(users, 1):
        queue.push(one(number, user, **fields))
    return queue


def served(queue: ModelQueue, policy: BatchPolicy = ALONE, batches: int = 1000) -> list[list[int]]:
    """Numbers of the jobs of the next batches, each taken as it is chosen."""
    found: list[list[int]] = []
    while len(queue) and len(found) < batches:
        jobs, _, _ = choose(queue, policy, 10**9)
        for chosen in jobs:
            queue.take(chosen)
        queue.check_invariants()
        found.append([chosen.number for chosen in jobs])
    return found


def test_a_request_waits_for_one_of_each_other_user_however_many_they_have_queued() -> None:
    queue = queued(*["greedy"] * 10_000, "polite")
    first = [numbers[0] for numbers in served(queue, batches=2)]
    assert first == [1, 10_001]


def test_users_alternate_and_each_ones_order_stays() -> None:
    queue = queued("a", "a", "a", "b", "b", "c")
    assert served(queue) == [[1], [4], [6], [2], [5], [3]]


def test_requests_without_a_key_are_one_user() -> None:
    queue = queued("", "", "", "a", "a")
    assert served(queue) == [[1], [4], [2], [5], [3]]


def test_without_keys_the_order_is_that_of_arrival() -> None:
    assert served(queued("", "", "")) == [[1], [2], [3]]


def test_a_batch_takes_from_everybody_by_turns() -> None:
    queue = queued("a", "a", "a", "a", "b", "c", "b")
    policy = BatchPolicy(True, 4, (4,))
    assert served(queue, policy) == [[1, 5, 6, 2], [7, 3, 4]]


def test_who_comes_back_at_once_does_not_go_before_those_who_wait() -> None:
    """A user with two requests in flight has an empty queue each time one is sent."""
    queue = queued("eager", "patient")
    queue.push(one(3, "patient"))
    order = []
    for number in range(4, 8):
        order += served(queue, batches=1)
        queue.push(one(number, "eager"))
    assert order == [[1], [2], [4], [3]]


def test_one_too_large_for_the_rest_of_a_batch_is_first_in_the_next() -> None:
    queue = ModelQueue()
    for number, (user, rows) in enumerate([("a", 1), ("b", 8), ("c", 2), ("a", 5), ("c", 1)], 1):
        queue.push(one(number, user, rows=rows))
    policy = BatchPolicy(True, 8, (8,))
    assert served(queue, policy) == [[1, 3, 4], [2], [5]]


def test_another_batch_key_does_not_make_another_user() -> None:
    queue = ModelQueue()
    for number, (user, key) in enumerate([("a", 1), ("a", 2), ("a", 1), ("b", 2), ("b", 3)], 1):
        queue.push(one(number, user, key=key))
    assert served(queue) == [[1], [4], [2], [5], [3]]


def test_a_batch_key_shared_with_others_gives_each_his_turn() -> None:
    queue = ModelQueue()
    for number, (user, key) in enumerate([("a", 1), ("b", 2), ("c", 1), ("c", 1), ("b", 1)], 1):
        queue.push(one(number, user, key=key))
    policy = BatchPolicy(True, 2, (2,))
    assert served(queue, policy) == [[1, 5], [3, 4], [2]]


def test_what_a_dead_worker_had_is_next_with_its_users() -> None:
    queue = queued("a", "a", "b", "b")
    lost = [queue_job for queue_job in queue.jobs() if queue_job.number in (1, 3)]
    for taken in lost:
        queue.take(taken)
    for taken in reversed(lost):
        queue.push_front(taken)
    assert served(queue) == [[1], [3], [2], [4]]


def test_a_user_with_nothing_queued_leaves_nothing() -> None:
    queue = queued("a", "b", "c")
    for waiting in list(queue.jobs()):
        queue.remove(waiting)
    level = queue.level(0)
    assert (level.shares, level.lanes) == ({}, {})


def test_a_removed_request_costs_no_turn() -> None:
    queue = queued("a", "b", "a")
    queue.remove(next(waiting for waiting in queue.jobs() if waiting.number == 1))
    assert served(queue) == [[3], [2]]


def test_levels_come_before_turns() -> None:
    queue = ModelQueue()
    for number, (user, level) in enumerate([("a", 4), ("b", 4), ("a", 2), ("a", 2)], 1):
        queue.push(one(number, user, level=level))
    assert served(queue) == [[3], [4], [1], [2]]


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_passed_by_anyone_twice(seed: int) -> None:
    """While a user waits with his turn not had, each other user is chosen first once at most."""
    random = Random(seed)
    queue = ModelQueue()
    rows_max = random.choice((1, 4, 8))
    policy = BatchPolicy(rows_max > 1, rows_max, (rows_max,))
    keys, users = random.choice(((1, 3), (3, 9), (6, 200))), random.choice((2, 5, 40))
    passed: dict[str, set[str]] = {}
    order: dict[tuple[str, object], list[int]] = defaultdict(list)
    number = 0
    for _ in range(1500):
        if random.random() < 0.6:
            number += 1
            fresh = one(number, f"u{random.randrange(users)}", rows=random.randint(1, rows_max),
                        key=random.randrange(keys[0]), level=random.choice((2, 2, 4)))  # fmt: skip
            queue.push(fresh)
        elif random.random() < 0.2 and len(queue):
            queue.remove(random.choice(list(queue.jobs())))
        jobs = choose(queue, policy, 10**9)[0] if random.random() < 0.5 else []
        waiting = {(one.level, one.fairness_key) for one in queue.jobs()}
        if jobs:
            first, had = jobs[0], {(one.level, one.fairness_key) for one in jobs}
            for taken in jobs:
                queue.take(taken)
                order[taken.fairness_key, taken.key].append(taken.number * 10 + taken.level)
            for level, user in waiting - had:
                if level == first.level:
                    before = passed.setdefault(f"{level} {user}", set())
                    assert first.fairness_key not in before, f"{user} was passed twice"
                    before.add(first.fairness_key)
            for level, user in had:
                passed.pop(f"{level} {user}", None)
        here = {f"{one.level} {one.fairness_key}" for one in queue.jobs()}
        passed = {user: found for user, found in passed.items() if user in here}
        queue.check_invariants()
    for numbers in order.values():
        for level in (2, 4):
            own = [one for one in numbers if one % 10 == level]
            assert own == sorted(own), "one user's requests of one kind stay in order"


# --- the whole scheduler -------------------------------------------------------------------------


def greedy_and_polite(bench: Bench) -> None:
    bench.ask(*range(1, 101), fairness_key="greedy", rows=1)
    bench.ask(500, client=OTHER, fairness_key="polite", rows=1)


def test_another_clients_request_is_in_the_next_batch() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(4)))
    greedy_and_polite(bench)
    bench.finish(slot)
    assert 500 in bench.sent(slot)[0]


def test_turns_outlive_the_death_of_a_worker() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(4)))
    greedy_and_polite(bench)
    bench.finish(slot)
    (sent,) = bench.sent(slot)
    assert 500 in sent
    bench.dies(slot)
    fresh = bench.worker()
    bench.loaded(fresh)
    assert sorted(bench.sent(fresh)[0]) == sorted(sent)


def test_a_cancelled_user_and_one_whose_time_is_over_leave_the_turns_to_others() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, fairness_key="a")
    bench.ask(2, fairness_key="b", timeout_us=1000)
    bench.ask(3, fairness_key="c")
    bench.ask(4, 5, fairness_key="d")
    bench.cancel(3)
    bench.wait(2 * MS)
    bench.finish(slot)
    assert bench.sent(slot) == [[4]]
    bench.finish(slot)
    assert bench.sent(slot) == [[5]]


def test_a_model_that_keeps_the_order_of_answers_knows_no_turns() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(1, preserve_ordering=True)))
    bench.ask(1, 2, 3, fairness_key="greedy", rows=1)
    bench.ask(4, fairness_key="polite", rows=1)
    order = []
    for _ in range(4):
        order += bench.sent(slot)[0]
        bench.finish(slot)
    assert order == [1, 2, 3, 4]


def test_turns_go_on_in_the_next_generation_of_a_model() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(late_batch=False)))
    bench.ask(1, 2, 3, fairness_key="a")
    bench.ask(4, fairness_key="b")
    bench.load(config(**parameters(late_batch=False)), edition="1")
    fresh = bench.worker()
    bench.loaded(fresh)
    assert bench.sent(slot) == [[1]]
    order = []
    for _ in range(3):
        order += bench.sent(fresh)[0]
        bench.finish(fresh)
    assert order == [2, 4, 3]
    assert bench.is_answered(2, CLIENT)

"""What waits for one GPU takes nothing from what another can do: turns, places, delays, batches."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from naiad.broker.core.batcher import DELAY, FULL, BatchPolicy, choose
from naiad.broker.core.job import ANYWHERE, Job
from naiad.broker.core.queue import ModelQueue
from support.simulated_bench import CLIENT, MS, Json, batching, queue_policy
from support.simulated_gpus import A, B, TwoGpus, model
from support.simulated_jobs import job

ANY_WIDTH: Json = {"data_type": "TYPE_UINT8", "dims": [-1]}
OF_ANY_WIDTH: Json = {"input": [{"name": "X", **ANY_WIDTH}], "output": [{"name": "Y", **ANY_WIDTH}]}
TWO_AND_ONE: list[Json] = [
    {"name": "a", "kind": "KIND_GPU", "gpus": [0], "count": 2},
    {"name": "b", "kind": "KIND_GPU", "gpus": [1], "count": 1},
]
ONE = BatchPolicy()


def one(number: int, only_on: int, user: str = "", **fields: object) -> Job:
    made = job(number, enqueued_ns=number, **fields)  # type: ignore[arg-type]
    made.only_on = only_on
    made.fairness_key = user
    return made


def queued(*waiting: tuple[int, str]) -> ModelQueue:
    """One job each, of this user for this GPU, numbered from 1."""
    queue = ModelQueue()
    for number, (gpu, user) in enumerate(waiting, 1):
        queue.push(one(number, gpu, user))
    return queue


def served(queue: ModelQueue, *gpus: int, policy: BatchPolicy = ONE) -> list[list[int]]:
    """What instances on these GPUs get, one after the other."""
    found = []
    for gpu in gpus:
        jobs, _, _ = choose(queue, policy, 10**9, 1, gpu)
        for chosen in jobs:
            queue.take(chosen, gpu)
        queue.check_invariants()
        found.append([chosen.number for chosen in jobs])
    return found


# --- turns -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1])
def test_users_take_turns_on_a_gpu_though_somebody_waits_for_another(rows: int) -> None:
    at = TwoGpus()
    first, _ = at.serve(model(**(batching(1) if rows else {})), A, B)
    at.ask_on(0, 1, rows=rows, fairness_key="greedy")
    at.ask_on(1, 2, 3, rows=rows, fairness_key="elsewhere")
    at.ask_on(0, *range(100, 120), rows=rows, fairness_key="greedy")
    at.ask_on(0, 200, rows=rows, fairness_key="polite")
    order = []
    for _ in range(4):
        order += at.sent(first)[0]
        at.finish(first)
    assert order == [1, 100, 200, 101]


def test_a_turn_counts_in_all_that_the_instance_serves() -> None:
    queue = queued((0, "u"), (0, "u"), (ANYWHERE, "u"), (ANYWHERE, "v"), (0, "v"))
    assert served(queue, *[0] * 5) == [[1], [4], [2], [5], [3]]


def test_whose_turn_it_is_at_one_gpu_is_served_where_it_is_his() -> None:
    """Not where he has waited longer, but the other GPU has given him a turn since."""
    queue = queued((ANYWHERE, "u"), (ANYWHERE, "u"), (1, "u"), (ANYWHERE, "v"), (ANYWHERE, "v"))
    assert served(queue, 0, 1, 1, 1, 1) == [[1], [3], [4], [2], [5]]


def test_also_what_any_can_execute_counts_for_its_gpu() -> None:
    queue = queued((ANYWHERE, "u"), (0, "v"), (0, "u"), (0, "v"))
    assert served(queue, *[0] * 4) == [[1], [2], [3], [4]]
    queue = queued((ANYWHERE, "u"), (0, "u"), (0, "v"))
    assert served(queue, *[0] * 3) == [[1], [3], [2]]


def test_a_turn_on_another_gpu_does_not_count() -> None:
    queue = queued((0, "u"), (0, "v"), *[(1, "u")] * 3)
    assert served(queue, 1, 1, 1, 0, 0) == [[3], [4], [5], [1], [2]]


def test_nor_does_it_when_a_worker_there_is_given_one() -> None:
    at = TwoGpus()
    first, second = at.serve(model(), A, B)
    at.ask_on(0, 1)
    at.ask_on(1, 2, 3, 4, fairness_key="u")
    at.ask_on(0, 5, fairness_key="u")
    at.ask_on(0, 6, fairness_key="v")
    at.finish(second)
    at.finish(second)
    at.finish(first)
    assert (at.sent(first), at.sent(second)) == ([[5]], [[4]])


def test_an_instance_that_sees_all_gives_turns_in_everything() -> None:
    queue = queued((0, "u"), (1, "u"), (1, "v"))
    assert served(queue, *[ANYWHERE] * 3) == [[1], [3], [2]]


def test_who_comes_back_goes_behind_those_who_wait_beside() -> None:
    queue = queued((0, ""))
    assert served(queue, 0) == [[1]]
    queue.push(one(2, ANYWHERE, "w"))
    queue.push(one(3, 0, ""))  # nothing of him was left
    assert served(queue, 0, 0) == [[2], [3]]


def test_without_users_the_order_is_that_of_arrival() -> None:
    gpus = (0, ANYWHERE, 1, 0, ANYWHERE, 0, ANYWHERE)
    queue = queued(*[(gpu, "") for gpu in gpus])
    assert served(queue, *[0] * 6) == [[1], [2], [4], [5], [6], [7]]


def test_what_came_back_from_a_dead_worker_is_next_also_beside_others() -> None:
    queue = queued((ANYWHERE, "u"), (0, "v"))
    again = one(0, 0, "w")
    queue.push_front(again)
    assert served(queue, 0, 0, 0) == [[0], [1], [2]]


@pytest.mark.parametrize("seed", range(30))
def test_nobody_is_passed_twice_on_a_gpu_by_the_same_user(seed: int) -> None:
    """By requests of every kind: a user's own, for any instance, for one GPU."""
    random = Random(seed)
    queue = ModelQueue()
    policy = random.choice((ONE, BatchPolicy(True, 3, (3,))))
    passed: defaultdict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    waiting: dict[int, Job] = {}
    for number in range(1, 400):
        if random.random() < 0.55:
            made = one(number, random.choice((ANYWHERE, 0, 1)), random.choice("abcd"))
            made.key = random.choice((None, "other"))
            waiting[number] = made
            queue.push(made)
            continue
        gpu = random.choice((0, 0, 1, ANYWHERE))
        jobs, _, _ = choose(queue, policy, 10**9, 1, gpu)
        seen = [who for who in waiting.values() if gpu == ANYWHERE or who.only_on in (gpu, -1)]
        assert bool(jobs) == bool(seen)
        for chosen in jobs:
            queue.take(chosen, gpu)
            del waiting[chosen.number]
            for only_on in (ANYWHERE, 0, 1):
                if gpu == ANYWHERE or only_on in (gpu, ANYWHERE):
                    passed.pop((chosen.fairness_key, only_on), None)
        had = {chosen.fairness_key for chosen in jobs}
        for key in {(who.fairness_key, who.only_on) for who in seen if who not in jobs}:
            if key[0] not in had:
                assert (jobs[0].fairness_key, gpu) not in passed[key], (key, jobs)
                passed[key].add((jobs[0].fairness_key, gpu))
        for key in list(passed):
            if not any((who.fairness_key, who.only_on) == key for who in waiting.values()):
                del passed[key]
        queue.check_invariants()


# --- urgency, batches, series ----------------------------------------------------------


def test_the_more_urgent_goes_first_whichever_gpu_it_is_for() -> None:
    queue = ModelQueue()
    for number, (only_on, level) in enumerate([(0, 4), (ANYWHERE, 2), (1, 0), (0, 2)], 1):
        queue.push(one(number, only_on, level=level))
    assert served(queue, 0, 0, 0, 0) == [[2], [4], [1], []]


def test_users_take_turns_beside_each_other_also_above_others() -> None:
    queue = queued((ANYWHERE, "u"), (ANYWHERE, "u"), (0, "v"))
    queue.push(one(4, 0, level=2))
    assert served(queue, 0, 0, 0, 0) == [[1], [3], [2], [4]]


def test_a_batch_is_filled_from_below_with_its_own_alone() -> None:
    queue = ModelQueue()
    places = [(ANYWHERE, 0), (0, 0), (ANYWHERE, 2), (0, 2), (1, 2)]
    for number, (only_on, level) in enumerate(places, 1):
        queue.push(one(number, only_on, level=level))
    policy = BatchPolicy(True, 4, (4,))
    assert served(queue, 0, 0, 1, policy=policy) == [[1, 3], [2, 4], [5]]


def test_a_complete_batch_beside_does_not_wait_for_the_delay_of_the_next() -> None:
    policy = BatchPolicy(True, 2, (2,), delay_ns=1000)
    jobs, _, reason = choose(queued((ANYWHERE, ""), (0, ""), (0, "")), policy, 10, 1, 0)
    assert ([chosen.number for chosen in jobs], reason) == ([2, 3], FULL)
    queue = queued((0, ""), (ANYWHERE, ""), (ANYWHERE, ""))
    jobs, _, reason = choose(queue, policy, 10, 1, 0)
    assert ([chosen.number for chosen in jobs], reason) == ([2, 3], FULL)
    jobs, again_ns, _ = choose(queued((0, ""), (ANYWHERE, "")), policy, 10, 1, 0)
    assert (jobs, again_ns) == ([], 1001)
    jobs, _, reason = choose(queue, policy, 1001, 1, 0)
    assert ([chosen.number for chosen in jobs], reason) == ([1], DELAY)


def test_a_complete_batch_goes_however_many_shapes_wait_for_another_gpu() -> None:
    at = TwoGpus()
    with_delay = batching(4, max_queue_delay_microseconds=500_000)
    first, second = at.serve(model(**with_delay, **OF_ANY_WIDTH), A, B)
    at.dies(second)
    for number in range(20):
        at.ask_on(1, 1000 + number, rows=1, width=10 + number)
    at.ask_on(0, 1, rows=1, width=3)
    at.ask_on(0, 2, 3, 4, 5, rows=1, width=5)
    assert at.sent(first) == [[2, 3, 4, 5]]


def test_a_series_is_of_one_user_where_others_wait_beside() -> None:
    queue = queued((0, "u"), (0, "u"), (ANYWHERE, "v"))
    jobs, _, _ = choose(queue, ONE, 10, 16, 0)
    assert [chosen.number for chosen in jobs] == [1]
    queue = queued((0, "u"), (0, "u"), (ANYWHERE, "u"), (1, "v"))
    jobs, _, _ = choose(queue, ONE, 10, 16, 0)
    assert [chosen.number for chosen in jobs] == [1, 2]


def test_idle_instances_share_what_they_can_execute() -> None:
    at = TwoGpus()
    first, second, third = at.serve(model(TWO_AND_ONE), A, A, B)
    for ident in range(1, 31):  # so short that they would be sent in series
        at.ask_on(0, 2 * ident, 2 * ident + 1)
        at.finish(first, took_ns=20_000)
        at.finish(second, took_ns=20_000)
    at.ask_on(1, *range(100, 150))
    at.together(0, 201, 202, 203, 204)
    assert sorted(at.sent(first) + at.sent(second)) == [[201], [202], [203], [204]]
    assert len(at.sent(first)) == 2
    assert at.sent(third)[0] == [100]


# --- places, suspects -------------------------------------------------------------------


def test_what_one_gpu_cannot_take_fills_no_place_of_another() -> None:
    at = TwoGpus()
    first, second = at.serve(model(**queue_policy(4, max_queue_size=4)), A, B)
    at.dies(second)
    at.ask_on(1, *range(1, 6), rows=1)
    assert not any(at.answers[CLIENT, ident] for ident in range(1, 5))
    code, text = at.error(5)
    assert (code, "4 requests wait for 'm' on GPU 1; try" in text) == ("queue_full", True)
    at.ask_on(0, 50, rows=1)
    assert at.sent(first) == [[50]]
    at.ask_on(ANYWHERE, *range(60, 65), rows=1)
    assert not any(at.answers[CLIENT, ident] for ident in range(60, 64))
    assert "4 requests wait for 'm'; try again later" in at.error(64)[1]


def test_what_was_sent_early_fills_its_own_place() -> None:
    queue = queued((0, ""), (1, ""), (1, ""))
    queue.level(0, 1).early += 1
    assert [queue.queued_at(0, gpu) for gpu in (ANYWHERE, 0, 1)] == [0, 1, 3]


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_suspect_keeps_the_second_batch_from_its_own_gpu_alone(gpu: int) -> None:
    at = TwoGpus()
    first, second, third = at.serve(model(TWO_AND_ONE), A, A, B)
    for ident in (1, 3, 5):
        at.ask_on(0, ident, ident + 1)
        at.wait(20 * MS)
        at.finish(first, took_ns=20 * MS)
        at.finish(second, took_ns=20 * MS)
    at.ask_on(0, 10, 11, 12)
    at.ask_on(1, 13)
    dead = third if gpu else second
    at.dies(dead, executing=at.batches[dead][0].id)
    at.wait(21 * MS)
    assert at.sent(first)[1:] == ([[12]] if gpu else [])


# --- another generation -----------------------------------------------------------------

ON_ONE: list[Json] = [{"name": "m_0", "kind": "KIND_GPU", "gpus": [0], "count": 1}]


def test_a_reload_onto_more_gpus_leaves_each_where_its_memory_is() -> None:
    at = TwoGpus()
    at.serve(model(ON_ONE), A)
    at.ask_on(0, 1, 2)
    at.load(model(), edition="1")
    newer = [at.worker(A), at.worker(B)]
    for slot in reversed(newer):
        at.loaded(slot)
    assert [at.sent(slot) for slot in newer] == [[[2]], []]


def test_a_reload_onto_one_gpu_batches_all_together() -> None:
    at = TwoGpus()
    at.serve(model(**batching(4)), A, B)
    at.ask_on(0, 1, rows=1)
    at.ask_on(ANYWHERE, 2, 3, rows=1)
    at.ask_on(0, 4, rows=1)
    at.load(model(ON_ONE, **batching(4)), edition="1")
    slot = at.worker(A)
    at.loaded(slot)
    assert at.sent(slot) == [[3, 4]]

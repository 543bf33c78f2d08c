"""Requests with GPU memory of clients, for a model on several GPUs: who gets them, who waits."""

from __future__ import annotations

from random import Random

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.batcher import choose
from naiad.broker.core.job import ANYWHERE
from naiad.protocol import messages as m
from support.simulated_bench import CLIENT, MS, Json, S, batching, parameters
from support.simulated_gpus import A, B, TwoGpus, model


def test_a_request_goes_to_the_gpu_with_its_memory() -> None:
    for gpu in (0, 1):
        at = TwoGpus()
        slots = at.serve(model(), A, B)
        at.ask_on(gpu, 1)
        assert [at.sent(slot) for slot in slots] == [[[1]] if one == gpu else [] for one in (0, 1)]


def test_it_waits_for_that_gpu_and_holds_up_nobody_else() -> None:
    at = TwoGpus()
    first, second = at.serve(model(), A, B)
    at.ask_on(1, 1, 2, 3)
    assert (at.sent(first), at.sent(second)) == ([], [[1]])
    at.ask_on(0, 4)
    assert at.sent(first) == [[4]]
    at.ask_on(ANYWHERE, 5)
    at.finish(first)
    assert at.sent(first) == [[5]]  # though 2 and 3 came before
    at.finish(second)
    assert at.sent(second) == [[2]]


def test_what_waits_longest_of_what_an_instance_can_see_is_next() -> None:
    at = TwoGpus()
    first, _ = at.serve(model(), A, B)
    for ident, gpu in enumerate((0, 1, 1, ANYWHERE, 0), start=1):
        at.ask_on(gpu, ident)
    at.finish(first)
    assert at.sent(first) == [[4]]


def test_where_all_instances_see_the_same_everything_is_batched_together() -> None:
    at = TwoGpus()
    alone = [{"name": "m_0", "kind": "KIND_GPU", "gpus": [0], "count": 2}]
    at.load(model(alone, **batching(8)))
    slots = [at.worker(A), at.worker(A)]
    for slot in slots:
        at.loaded(slot)
    for ident in range(1, 7):
        at.ask_on(0 if ident % 2 else ANYWHERE, ident, rows=1)
    at.finish(slots[1])
    assert at.sent(slots[1]) == [[3, 4, 5, 6]]


def test_batches_are_of_one_gpu() -> None:
    at = TwoGpus()
    first, second = at.serve(model(**batching(8)), A, B)
    at.ask_on(0, 1, rows=1)
    at.ask_on(1, 2, rows=1)
    for ident in range(3, 9):
        at.ask_on(ident % 2, ident, rows=1)
    at.finish(first)
    at.finish(second)
    assert at.sent(first) == [[4, 6, 8]]
    assert at.sent(second) == [[3, 5, 7]]


def test_a_less_urgent_request_is_served_where_the_urgent_one_cannot_be() -> None:
    at = TwoGpus()
    urgency = batching(1, priority_levels=2, default_priority_level=2)
    first, second = at.serve(model(**urgency), A, B)
    at.ask_on(1, 1, 2, rows=1, priority=1)
    at.ask_on(0, 3, rows=1, priority=2)
    assert (at.sent(first), at.sent(second)) == ([[3]], [[1]])


def test_the_next_is_sent_ahead_to_a_busy_gpu_though_another_is_idle() -> None:
    at = TwoGpus()
    first, second = at.serve(model(), A, B)
    for ident in (1, 2, 3):
        at.ask_on(1, ident)
        at.wait(20 * MS)
        at.finish(second, took_ns=20 * MS)
    at.ask_on(1, 4, 5)
    at.wait(21 * MS)
    assert at.sent(second) == [[4], [5]]
    assert at.sent(first) == []


def test_an_instance_for_which_nothing_waits_keeps_nothing_from_the_next() -> None:
    at = TwoGpus()
    first, second = at.serve(model(), A, B)
    for ident in (1, 2, 3):
        at.ask_on(0, 2 * ident)
        at.ask_on(1, 2 * ident + 1)
        at.wait(20 * MS)
        at.finish(first, took_ns=20 * MS)
        at.finish(second, took_ns=20 * MS)
    at.ask_on(0, 20)
    at.ask_on(1, 21, 22)
    at.wait(21 * MS)
    assert (at.sent(first), at.sent(second)) == ([[20]], [[21], [22]])


def test_both_gpus_are_named_where_no_instance_sees_the_memory() -> None:
    at = TwoGpus()
    at.serve(model([{"name": "m_0", "kind": "KIND_GPU", "gpus": [0], "count": 1}]), A)
    at.ask_on(1, 1)
    text = at.error(1)[1]
    assert "region 'on-1' is on GPU 1, and 'm' has instances on GPU 0, which do not see it" in text


def test_tensors_on_two_gpus_are_refused() -> None:
    at = TwoGpus()
    at.serve(model(), A, B)
    target = m.OutputRequest("Y", int(m.Place.REGION), at.regions[1], 0, 4)
    at.ask_on(0, 1, outputs=(target,))
    assert "is on GPU 1, and other tensors of this request are on GPU 0" in at.error(1)[1]


def test_where_workers_of_the_cpu_see_all_they_take_what_no_gpu_can() -> None:
    at = TwoGpus()
    both: list[Json] = [
        {"name": "g", "kind": "KIND_GPU", "gpus": [0]},
        {"name": "c", "kind": "KIND_CPU"},
    ]
    first, second = at.serve(model(both), A, "cpu")
    at.ask_on(1, 1, 2)
    assert (at.sent(first), at.sent(second)) == ([], [[1]])
    at.finish(second)
    assert at.sent(second) == [[2]]


def test_what_a_dead_worker_had_waits_for_its_gpu_and_suspects_block_no_other() -> None:
    at = TwoGpus()
    first, second = at.serve(model(), A, B)
    at.ask_on(1, 1, 2)
    at.dies(second, executing=at.batches[second][0].id)
    assert at.sent(first) == []
    at.ask_on(0, 3)
    assert at.sent(first) == [[3]]
    again = at.worker(B)
    at.loaded(again)
    assert at.sent(again) == [[1]]
    at.finish(again)
    assert at.sent(again) == [[2]]


@pytest.mark.parametrize("end", ["unload", "drain"])
def test_what_waits_for_a_gpu_that_does_not_come_back_ends(end: str) -> None:
    at = TwoGpus()
    first, second = at.serve(model(), A, B)
    at.ask_on(1, 1, 2)
    at.ask_on(0, 3, 4)
    at.dies(second)
    if end == "unload":
        at.ask_control("unload", model="m")
    else:
        at.do(e.DrainAsked(at.now_ns + 30 * S))
    why = "was unloaded" if end == "unload" else "the server is stopping"
    assert [why in at.error(ident)[1] for ident in (1, 2)] == [True, True]
    at.finish(first)
    at.finish(first)
    assert at.is_answered(3)
    assert at.is_answered(4)
    assert at.is_stopped(first)


def test_what_a_worker_of_the_cpu_can_take_is_served_before_an_unload() -> None:
    at = TwoGpus()
    both: list[Json] = [
        {"name": "g", "kind": "KIND_GPU", "gpus": [0]},
        {"name": "c", "kind": "KIND_CPU"},
    ]
    first, second = at.serve(model(both), A, "cpu")
    at.ask_on(ANYWHERE, 1, 2)
    at.ask_on(0, 3)
    at.dies(first)
    at.ask_control("unload", model="m")
    for _ in range(3):
        at.finish(second)
    assert [at.is_answered(ident) for ident in (1, 2, 3)] == [True] * 3


def test_after_a_reload_they_are_where_the_new_instances_are() -> None:
    at = TwoGpus()
    first, second = at.serve(model(), A, B)
    at.ask_on(0, 1, 2)
    at.ask_on(1, 3, 4)
    at.load(model(), edition="1")
    newer = [at.worker(A), at.worker(B)]
    for slot in newer:
        at.loaded(slot)
    assert [at.sent(slot) for slot in newer] == [[[2]], [[4]]]
    at.finish(first)
    at.finish(second)
    assert at.is_answered(1)
    assert at.is_answered(3)


def test_one_that_no_new_instance_sees_is_served_by_the_old_generation() -> None:
    at = TwoGpus()
    _, second = at.serve(model(), A, B)
    at.ask_on(1, 1, 2)
    at.load(model([{"name": "m_0", "kind": "KIND_GPU", "gpus": [0], "count": 1}]), edition="1")
    at.loaded(at.worker(A))
    at.finish(second)
    at.finish(second)
    assert at.is_answered(2)
    assert at.is_stopped(second)


def test_a_restarted_broker_knows_it_too() -> None:
    at = TwoGpus()
    at.serve(model(), A, B)
    assert at.restarted().model().spans_gpus


class Walk:
    """Anything in any order; what each worker gets, and that none idles for nothing, is checked."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.at = at = TwoGpus()
        fields: Json = {}
        self.rows = random.choice((0, 4))
        if self.rows:
            levels = random.choice((0, 2))
            fields = batching(self.rows, max_queue_delay_microseconds=random.choice((0, 1_000)))
            if levels:
                fields["dynamic_batching"] |= {
                    "priority_levels": levels, "default_priority_level": 1,
                }  # fmt: skip
        groups: list[Json] = [
            {"name": "g", "kind": "KIND_GPU", "gpus": [0, 1], "count": random.choice((1, 2))}
        ]
        if random.random() < 0.3:
            groups.append({"name": "c", "kind": "KIND_CPU", "count": 1})
        at.load(model(groups, **fields, **parameters(crash_budget=1_000)))
        self.settle()
        self.ident = 0

    def settle(self) -> None:
        """A worker for every instance that has none, one after the other."""
        for one in list(self.at.model().instances):
            if one.slot is None and one.state == "WAITING":
                self.at.worker(one.device)
            if one.slot is not None and one.state == "LOADING":
                self.at.loaded(one.slot.key)

    def step(self) -> None:
        at, random = self.at, self.random
        busy = [key for key, batches in at.batches.items() if batches and key in at.world.slots]
        match random.choice("aaaaffffwwdc"):
            case "a":
                self.ident += 1
                more: Json = {"fairness_key": random.choice(("", "", "u", "v"))}
                if self.rows:
                    more |= {"rows": random.randint(1, 2), "priority": random.randint(0, 2)}
                at.ask_on(random.choice((ANYWHERE, 0, 1, 1)), self.ident, **more)
            case "f" if busy:
                at.finish(random.choice(busy), took_ns=random.choice((1, 5)) * MS)
            case "w":
                at.wait(random.choice((10_000, 1 * MS, 4 * MS)))
            case "d" if busy and random.random() < 0.3:
                slot = random.choice(busy)
                at.dies(slot, executing=random.choice((0, at.batches[slot][0].id)))
            case "c" if self.ident:
                at.cancel(random.randint(1, self.ident))
        self.settle()
        self.check()

    def check(self) -> None:
        at = self.at
        version = at.model()
        for key, batches in at.batches.items():
            slot = at.world.slots.get(key)
            if slot is None or slot.instance is None:
                continue
            for batch in batches:
                for request in batch.requests:
                    assert slot.instance.sees(at.needs[request.id]), (request.id, slot.name)
        for slot in version.idle:
            assert slot.instance is not None
            gpu = slot.instance.gpu
            jobs, again_ns, _ = choose(version.queue, version.batch_policy, at.now_ns, 1, gpu)
            assert not jobs, f"{slot.name} is idle, and could have {jobs}"
            assert at.scheduler.deadline_ns() <= again_ns


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_each_is_executed_where_its_memory_is(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(120):
        walk.step()
    at = walk.at
    for _ in range(600):
        busy = [key for key, found in at.batches.items() if found and key in at.world.slots]
        if not busy:
            at.wait(100 * MS)
            walk.settle()
            if not len(at.model().queue) and not any(at.batches[key] for key in at.world.slots):
                break
        for key in busy:
            at.finish(key)
        walk.settle()
        walk.check()
    unanswered = [ident for ident in at.needs if not at.answers[CLIENT, ident]]
    assert unanswered == []

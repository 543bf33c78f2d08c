"""Workers come, load, reconnect and die: who pays for a death, and when a model is given up."""

from __future__ import annotations

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.instances import InstanceState
from naiad.broker.core.models import ModelState
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, MS, Bench, S, batching, config, instances, parameters

LOAD_ERROR = (str(Code.LOAD_FAILED), "initialize raised", False)


def replaced(bench: Bench, slot: int, *, executing: int = 0) -> int:
    """The worker dies, another takes its instance as soon as that wants one."""
    instance = bench.instance(slot)
    bench.dies(slot, executing=executing)
    while instance.state is InstanceState.BACKOFF:
        bench.wait(100 * MS)
    if instance.slot is None and instance.state is InstanceState.WAITING:
        bench.worker()
    if instance.slot is None:
        return 0
    bench.loaded(instance.slot.key)
    return instance.slot.key


def executing_id(bench: Bench, slot: int) -> int:
    return bench.batches[slot][0].id


# --- who pays --------------------------------------------------------------------------------


def test_requests_of_a_dead_worker_that_were_not_executing_pay_nothing() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    slot = replaced(bench, slot, executing=0)
    assert bench.sent(slot) == [[1]]
    assert not bench.world.slots[slot].current.jobs[0].suspect  # type: ignore[union-attr]
    bench.finish(slot)
    assert bench.is_answered(1)


def test_suspects_run_alone_and_before_all_others() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(4)))
    bench.ask(1, 2, 3, rows=1)
    bench.ask(4, rows=1)
    slot = replaced(bench, slot, executing=executing_id(bench, slot))
    order = []
    while bench.batches[slot]:
        order += bench.sent(slot)
        bench.finish(slot)
    assert order == [[1], [2], [3], [4]]
    assert all(bench.is_answered(ident) for ident in (1, 2, 3, 4))


def test_a_request_alone_at_two_deaths_is_poison() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    for _ in range(2):
        slot = replaced(bench, slot, executing=executing_id(bench, slot))
    code, text = bench.error(1)
    assert code == Code.POISON_REQUEST
    assert "poison request" in text
    assert "SIGKILL" in text
    bench.finish(slot)
    assert bench.is_answered(2)
    assert bench.world.counters.poison_requests == 1


@pytest.mark.parametrize("poisons", [1, 4, 8])
def test_poison_alone_never_makes_a_model_unavailable(poisons: int) -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(8)))
    bench.ask(*range(1, poisons + 1), rows=1)
    bench.ask(99, rows=1)
    while any(bench.batches[slot]):
        batch = bench.batches[slot][0]
        if any(request.id <= poisons for request in batch.requests):
            slot = replaced(bench, slot, executing=batch.id)
            assert slot
        else:
            bench.finish(slot)
    assert bench.model().state is ModelState.READY
    for ident in range(1, poisons + 1):
        assert bench.error(ident)[0] == Code.POISON_REQUEST
    assert bench.is_answered(99)


def test_poison_that_nobody_waits_for_any_more_costs_the_model_nothing() -> None:
    """Its client cancels while its second death is on the way."""
    bench = Bench()
    (slot,) = bench.served(config())
    for ident in range(1, 8):
        bench.ask(ident)
        slot = replaced(bench, slot, executing=executing_id(bench, slot))
        executing = executing_id(bench, slot)
        bench.cancel(ident)
        assert bench.error(ident)[0] == Code.CANCELLED
        slot = replaced(bench, slot, executing=executing)
        assert bench.model().consecutive_deaths == 0
    assert bench.model().state is ModelState.READY
    assert bench.world.counters.poison_requests == 7


def test_without_retry_the_executing_request_fails_and_the_waiting_one_runs() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(retry=False)))
    bench.ask(1, 2)
    slot = replaced(bench, slot, executing=executing_id(bench, slot))
    assert bench.error(1)[0] == Code.WORKER_DIED
    assert bench.order == [("answer", 1), ("released", 1)], "a client waits for both"
    bench.finish(slot)
    assert bench.is_answered(2)


def test_a_request_whose_output_overlaps_its_input_is_not_run_twice() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.client()
    bench.do(e.RegionOffered(CLIENT, 1, m.Region(1, "/naiad.x", 1, 2, 4096), None))
    source = m.Tensor("X", "UINT8", (4,), int(m.Place.REGION), 1, 0, 4)
    target = m.OutputRequest("Y", int(m.Place.REGION), 1, 2, 4)
    request = bench.request(1, inputs=(source,), outputs=(target,))
    bench.do(e.RequestsArrived(CLIENT, (request,), []))
    bench.dies(slot, executing=executing_id(bench, slot))
    assert bench.error(1)[0] == Code.WORKER_DIED
    assert bench.released[CLIENT] == [1]


def test_a_truncated_region_fails_the_guilty_and_counts_no_crash() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(4)))
    bench.client()
    bench.do(e.RegionOffered(CLIENT, 1, m.Region(1, "/naiad.x", 1, 2, 4096), None))
    source = m.Tensor("X", "UINT8", (1, 4), int(m.Place.REGION), 1, 0, 4)
    both = (bench.request(1, rows=1, inputs=(source,)), bench.request(2, rows=1))
    bench.do(e.RequestsArrived(CLIENT, both, [bytes(4)]))
    (region,) = bench.batches[slot][0].regions
    batch = bench.batches[slot][0].id
    bench.do(e.SlotDied(slot, "SIGBUS", batch, False, (region.id,)))
    assert bench.error(1)[0] == Code.REGION_TRUNCATED
    assert bench.model().consecutive_deaths == 0
    slot = bench.worker()
    bench.loaded(slot)
    assert [[one.id for one in batch.requests] for batch in bench.batches[slot]] == [[2]]


# --- the crash budget --------------------------------------------------------------------------


def test_deaths_in_a_row_use_up_the_budget_and_the_model_is_tried_again_later() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=3)))
    for _ in range(2):
        slot = replaced(bench, slot)
    bench.ask(1)
    bench.batches.clear()
    bench.dies(slot)
    model = bench.model()
    assert model.state is ModelState.UNAVAILABLE
    assert "died 3 times in a row" in model.reason
    assert bench.error(1)[0] == Code.NOT_READY
    assert 0.7 * S < model.next_retry_ns - bench.now_ns < 1.3 * S
    bench.worker()
    bench.wait(2 * S)
    assert str(model.state) == "LOADING"
    bench.loaded(bench.worker_of(model))
    assert str(model.state) == "READY"


@pytest.mark.parametrize("loads", [False, True])
def test_the_pauses_between_retries_grow_to_a_limit(loads: bool) -> None:
    """Also when it loads each time, and dies of the first request."""
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=1)))
    bench.dies(slot)
    pauses = []
    for _ in range(9):
        model = bench.model()
        pauses.append((model.next_retry_ns - bench.now_ns) / S)
        slot = bench.worker()
        bench.wait(model.next_retry_ns - bench.now_ns)
        assert model.state is ModelState.LOADING
        if loads:
            bench.loaded(slot)
            assert str(model.state) == "READY"
        bench.dies(slot)
    assert all(0.75 * 2**n < pause < 1.25 * 2**n for n, pause in enumerate(pauses[:6]))
    assert max(pauses) <= 60 * 1.2


def test_a_success_between_deaths_resets_the_budget() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=2)))
    for ident in range(1, 6):
        bench.ask(ident)
        bench.finish(slot)
        slot = replaced(bench, slot)
    assert bench.model().state is ModelState.READY


def test_killed_by_the_broker_while_it_did_nothing_counts_nothing() -> None:
    """Its machine was paused, or somebody stopped it: that is no fault of the model."""
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=1)))
    for _ in range(3):
        bench.do(e.SlotSilent(slot, is_killed=True))
        bench.dies(slot, ordered=True)
        assert bench.model().state is ModelState.READY
        bench.wait(S)
        bench.loaded(slot := bench.worker())
        assert bench.model().is_ready


def test_workers_that_are_killed_idle_again_and_again_are_replaced_after_pauses() -> None:
    """A model that spoils its worker's connection may do so each time, as soon as it is loaded."""
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=1)))
    instance = bench.instance(slot)
    pauses = []
    for _ in range(5):
        bench.do(e.SlotSilent(slot, is_killed=True))
        bench.dies(slot, ordered=True)
        begin_ns = bench.now_ns
        while instance.state is InstanceState.BACKOFF:
            bench.wait(1 * MS)
        pauses.append((bench.now_ns - begin_ns) // MS)
        bench.loaded(slot := bench.worker())
    assert pauses == [0, 100, 200, 400, 800]
    bench.ask(1)
    bench.finish(slot)
    bench.dies(slot, ordered=True)
    assert instance.state is InstanceState.WAITING, "it has served since"


def test_killed_by_the_broker_while_it_executes_counts() -> None:
    """Also a model that hangs or freezes its worker again and again is given up."""
    bench = Bench()
    (slot,) = bench.served(
        config(**{**batching(2), **parameters(crash_budget=2, execution_timeout_ms=100)})
    )
    for first in (1, 3):
        bench.ask(first, first + 1, rows=1)
        (batch,) = bench.batches[slot]
        bench.wait(100 * MS)
        assert bench.killed[-1] == slot
        bench.dies(slot, executing=batch.id, ordered=True)
        bench.cancel(first, first + 1)
        if first == 1:
            bench.loaded(slot := bench.worker())
    model = bench.model()
    assert model.state is ModelState.UNAVAILABLE
    assert "died 2 times in a row" in model.reason


def test_killed_by_the_broker_while_it_loads_again_counts() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=2)))
    for _ in range(2):
        bench.dies(slot, ordered=True)
        bench.wait(S)
        slot = bench.worker()
    assert bench.model().state is ModelState.READY, "the first one was idle"
    bench.dies(slot, ordered=True)
    assert bench.model().state is ModelState.UNAVAILABLE


def test_a_death_after_successes_restarts_at_once_more_of_them_wait() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    instance = bench.instance(slot)
    states = []
    for _ in range(3):
        bench.dies(slot)
        states.append(instance.state)
        while instance.state is not InstanceState.WAITING:
            bench.wait(50 * MS)
        slot = bench.worker()
        bench.loaded(slot)
    assert states == [InstanceState.WAITING, InstanceState.BACKOFF, InstanceState.BACKOFF]


# --- loading -------------------------------------------------------------------------------------


def test_a_failed_first_load_makes_the_version_unavailable_with_the_reason() -> None:
    bench = Bench()
    call = bench.load(config())
    bench.loaded(bench.worker(), LOAD_ERROR)
    model = bench.model()
    assert (model.state, model.reason) == (ModelState.UNAVAILABLE, "initialize raised")
    error, _ = bench.replies[CLIENT, call]
    assert error is not None
    assert error.code is Code.LOAD_FAILED
    assert "initialize raised" in error.message


def test_one_of_two_instances_that_fails_to_load_fails_the_load() -> None:
    bench = Bench()
    bench.load(config(**instances(2)))
    first, second = bench.worker(), bench.worker()
    bench.loaded(first, LOAD_ERROR)
    assert bench.killed == [second]
    bench.dies(first)
    bench.dies(second, ordered=True)
    assert bench.model().state is ModelState.UNAVAILABLE


def test_a_worker_that_cannot_load_again_is_a_death_as_long_as_others_serve() -> None:
    bench = Bench()
    first, second = bench.served(config(**instances(2)))
    bench.dies(first)
    bench.loaded(bench.worker(), LOAD_ERROR)
    assert bench.model().is_ready
    bench.ask(1)
    bench.finish(second)
    assert bench.is_answered(1)


def test_queued_requests_are_answered_when_the_last_worker_cannot_come_back() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=3)))
    bench.ask(1)
    bench.dies(slot)
    for _ in range(5):
        while bench.model().instances[0].state is InstanceState.BACKOFF:
            bench.wait(100 * MS)
        if bench.model().state is ModelState.UNAVAILABLE:
            break
        bench.loaded(bench.worker(), LOAD_ERROR)
    assert bench.error(1)[0] == Code.NOT_READY


def test_a_load_that_takes_too_long_fails_and_its_worker_is_killed() -> None:
    bench = Bench()
    bench.load(config(**parameters(load_timeout_s=7)))
    slot = bench.worker()
    bench.wait(8 * S)
    assert slot in bench.killed
    assert "naiad.load_timeout_s = 7 s" in bench.model().reason


def test_an_unusable_completed_config_fails_the_load_and_nothing_else() -> None:
    bench = Bench()
    call = bench.load(config())
    slot = bench.worker()
    bench.loaded(slot, config=config(input=[{"name": "X", "data_type": "", "dims": [4]}]))
    assert bench.model().state is ModelState.UNAVAILABLE
    error, _ = bench.replies[CLIENT, call]
    assert error is not None
    assert slot in bench.killed

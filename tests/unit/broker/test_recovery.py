"""A new broker meets the workers and clients of the one that died: join, wait, run again."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.broker.core.models import ModelState
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, MS, OTHER, Bench, S, batching, config, instances
from support.simulated_restart import back, crashed, held, resend, results

CANCELLED = (str(Code.CANCELLED), "cancelled before it was executed", False)


def test_a_ready_model_stays_ready_and_its_requests_wait_for_the_worker() -> None:
    bench, slot, instance, _ = crashed()
    bench.ask(1)
    assert bench.model().state is ModelState.READY
    assert bench.answers == {}
    back(bench, slot, instance)
    assert bench.sent(slot) == [[1]]


def test_a_resent_request_joins_the_running_copy() -> None:
    bench, slot, instance, (batch,) = crashed(None, 1)
    back(bench, slot, instance, held(batch, 1))
    resend(bench, 1)
    assert bench.sent(slot) == []
    results(bench, slot, batch)
    assert bench.is_answered(1)
    assert bench.world.counters.joined_requests == 1
    assert not bench.world.counters.reexecutions


def test_a_resent_request_joins_the_finished_copy_whoever_comes_first() -> None:
    for client_first in (True, False):
        bench, slot, instance, (batch,) = crashed(None, 1)
        if client_first:
            resend(bench, 1)
        back(bench, slot, instance, held(batch, 1, finished=True))
        results(bench, slot, batch)
        if not client_first:
            resend(bench, 1)
        assert bench.is_answered(1), client_first
        assert bench.sent(slot) == []


def test_a_resent_request_waits_until_every_worker_has_been_heard_of() -> None:
    bench, slot, instance, _ = crashed(None, 1)
    resend(bench, 1)
    assert bench.world.recovering
    assert bench.sent(slot) == []
    back(bench, slot, instance)
    assert not bench.world.recovering
    assert bench.sent(slot) == [[1]]
    assert bench.world.counters.reexecutions["resent"] == 1


def test_an_attempt_that_waited_is_replaced_by_the_next_one() -> None:
    bench = Bench()
    first, second = bench.served(config(**instances(2)))
    bench.ask(1)
    (slot,) = [one for one in (first, second) if bench.batches[one]]
    batch, instance = bench.batches[slot][0].id, bench.instance(slot).id
    bench = bench.restarted()
    resend(bench, 1)
    back(bench, slot, instance, held(batch, 1, finished=True))
    results(bench, slot, batch)
    bench.do(e.SessionLost(CLIENT))
    bench.client()
    resend(bench, 1, attempt=3)
    assert bench.is_answered(1)
    bench.do(e.SlotDied(first + second - slot, "it died while the broker was away", 0, False))
    assert not bench.world.recovering
    assert bench.sent(slot) == []


def test_a_worker_that_died_meanwhile_ends_the_waiting() -> None:
    bench, slot, _, _ = crashed(None, 1)
    resend(bench, 1)
    bench.do(e.SlotDied(slot, "it died while the broker was away", 0, False))
    assert not bench.world.recovering
    fresh = bench.worker()
    bench.loaded(fresh)
    assert bench.sent(fresh) == [[1]]


def test_a_worker_that_says_nothing_is_killed_after_two_seconds() -> None:
    bench, slot, _, _ = crashed(None, 1)
    bench.wait(1_900 * MS)
    assert bench.killed == []
    bench.wait(200 * MS)
    assert bench.killed == [slot]


def test_what_a_killed_worker_may_have_runs_again_only_after_the_proof_of_its_death() -> None:
    bench = Bench()
    first, second = bench.served(config(**instances(2)))
    bench.ask(1)
    (slot,) = [one for one in (first, second) if bench.batches[one]]
    other, instance = first + second - slot, bench.instance(first + second - slot).id
    bench = bench.restarted()
    back(bench, other, instance)
    resend(bench, 1)
    bench.wait(3 * S)
    assert bench.killed == [slot]
    assert bench.sent(other) == []
    bench.do(e.SlotDied(slot, "killed: it did not say hello", 0, True))
    assert bench.sent(other) == [[1]]


def test_a_hello_that_was_on_its_way_when_its_worker_was_killed_counts_no_more() -> None:
    bench, slot, instance, _ = crashed(None, 1)
    resend(bench, 1)
    bench.wait(3 * S)
    bench.do(e.SlotOpened(slot, bench.hello(slot, incarnation=7, instance=instance), slot))
    assert slot not in bench.world.slots
    fresh = bench.worker()
    bench.loaded(fresh)
    assert bench.sent(fresh) == []
    bench.do(e.SlotDied(slot, "killed: it did not say hello", 0, True))
    assert bench.sent(fresh) == [[1]]


def test_a_broker_that_dies_while_recovering_passes_on_whom_it_waited_for() -> None:
    bench, slot, instance, (batch,) = crashed(None, 1)
    third = bench.restarted()
    resend(third, 1)
    assert third.world.recovering
    back(third, slot, instance, held(batch, 1))
    results(third, slot, batch)
    assert third.is_answered(1)


def test_fresh_requests_run_while_recovering() -> None:
    bench = Bench()
    first, second = bench.served(config(**instances(2)))
    bench, wanted = bench.restarted(), bench.instance(first).id
    back(bench, first, wanted)
    bench.ask(5)
    assert bench.world.recovering
    assert bench.sent(first) == [[5]]
    assert second not in bench.world.slots


def test_requests_that_joined_finished_results_move_on_when_their_worker_dies() -> None:
    bench, slot, instance, (batch,) = crashed(None, 1)
    back(bench, slot, instance, held(batch, 1, finished=True))
    resend(bench, 1)
    bench.dies(slot)
    fresh = bench.worker()
    bench.loaded(fresh)
    bench.finish(fresh)
    assert bench.is_answered(1)


def test_a_result_that_an_earlier_broker_had_cancelled_is_no_result() -> None:
    for client_first in (True, False):
        bench, slot, instance, (batch,) = crashed(None, 1)
        back(bench, slot, instance, held(batch, 1))
        if client_first:
            resend(bench, 1)
        results(bench, slot, batch, error=CANCELLED)
        if not client_first:
            resend(bench, 1)
        bench.finish(slot)
        assert bench.is_answered(1), client_first


def test_cancelling_while_recovering_is_answered_and_released_once_nobody_can_have_it() -> None:
    bench, slot, instance, (batch,) = crashed(None, 1)
    resend(bench, 1)
    bench.do(e.CancelAsked(CLIENT, (1,)))
    assert bench.released[CLIENT] == []
    back(bench, slot, instance, held(batch, 1))
    assert bench.error(1)[0] == Code.CANCELLED
    assert bench.released[CLIENT] == []
    results(bench, slot, batch)
    assert bench.released[CLIENT] == [1]


def test_a_worker_nobody_wants_may_finish_and_is_told_to_go() -> None:
    bench, slot, _, (batch,) = crashed(None, 1)
    back(bench, slot, 12_345, held(batch, 1))
    (welcome,) = [one for one in bench.told[slot] if type(one) is m.SlotWelcome]
    assert not welcome.keep
    resend(bench, 1)
    results(bench, slot, batch)
    assert bench.is_answered(1)


def test_results_whose_client_never_returns_give_their_leases_back() -> None:
    bench, slot, instance, (batch,) = crashed(None, 1)
    back(bench, slot, instance, held(batch, 1))
    bench.wait(10 * S)
    output = m.Tensor("Y", "UINT8", (4,), int(m.Place.LEASE), 2**61, 0, 4)
    message = m.Results(batch, (m.BatchResult(None, (output,)),), m.Durations(0, 1, 0), 0, ())
    bench.do(e.BatchFinished(slot, message, []))
    bench.wait(10 * S)
    assert bench.told[slot][-1] == m.Return(((CLIENT, 1),))


def test_what_waits_for_the_recovery_is_bounded_and_others_are_not_touched() -> None:
    bench, slot, instance, _ = crashed()
    bench = bench.restarted(limits=Limits(session_requests_max=5))
    resend(bench, *range(1, 7))
    assert bench.error(6)[0] == Code.BUDGET_EXCEEDED
    resend(bench, 1, client=OTHER)
    back(bench, slot, instance)
    assert bench.sent(slot) == [[1]]
    assert (OTHER, 1) not in bench.answers


def test_a_resent_request_with_an_early_batch_waits_for_its_place() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(1)))
    instance = bench.instance(slot).id
    bench.ask(1, 2, rows=1)
    batch = bench.batches[slot][0].id
    bench = bench.restarted()
    back(bench, slot, instance, held(batch, 1), held(batch + 1, 2))
    bench.ask(1, 2, attempt=2, rows=1)
    bench.ask(3, rows=1)
    assert bench.sent(slot) == []
    results(bench, slot, batch)
    results(bench, slot, batch + 1)
    assert bench.sent(slot) == [[3]]
    assert bench.is_answered(1)
    assert bench.is_answered(2)


def test_a_worker_that_still_loads_serves_only_after_loaded() -> None:
    bench = Bench()
    bench.load(config())
    slot = bench.worker()
    instance = bench.instance(slot).id
    bench = bench.restarted()
    hello = bench.hello(slot, instance=instance, model="m", version=1)
    bench.do(e.SlotOpened(slot, hello, slot))
    assert not bench.control("model_ready", model="m")["ready"]
    bench.loaded(slot)
    assert bench.control("model_ready", model="m")["ready"]

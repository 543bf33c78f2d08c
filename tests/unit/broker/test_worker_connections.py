"""Workers that lose their connection or fall silent: what was lost, what is held."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, Bench, config, instances, parameters

LOAD_ERROR = (str(Code.LOAD_FAILED), "initialize raised", False)


def test_a_load_that_was_lost_is_told_again() -> None:
    bench = Bench()
    bench.load(config())
    slot = bench.worker()
    bench.wait(1)
    bench.do(e.SlotOpened(slot, bench.hello(slot), slot))
    loads = [one for one in bench.told[slot] if type(one) is m.Load]
    assert len(loads) == 2
    assert loads[0] == loads[1]


def test_a_lost_batch_is_queued_again_in_its_order_and_its_regions_are_told_again() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    instance = bench.instance(slot)
    bench.client()
    bench.do(e.RegionOffered(CLIENT, 1, m.Region(1, "/naiad.x", 1, 2, 4096), None))
    source = m.Tensor("X", "UINT8", (4,), int(m.Place.REGION), 1, 0, 4)
    bench.do(e.RequestsArrived(CLIENT, (bench.request(1, inputs=(source,)),), []))
    lost = bench.batches[slot].pop()
    bench.wait(1)
    hello = bench.hello(slot, instance=instance.id, model="m", version=1)
    bench.do(e.SlotOpened(slot, hello, slot))
    (again,) = bench.batches[slot]
    assert [one.id for one in again.requests] == [1]
    assert again.regions == lost.regions
    assert again.id > lost.id


def test_what_is_decided_in_the_turn_of_the_hello_is_not_lost() -> None:
    bench = Bench()
    bench.load(config(**parameters(max_queue_size=1)))
    slot = bench.worker()
    bench.do(e.SlotOpened(slot, bench.hello(slot), slot))
    assert len([one for one in bench.told[slot] if type(one) is m.Load]) == 1
    bench.loaded(slot)
    bench.client()
    burst = tuple(bench.request(ident) for ident in (1, 2, 3))
    hello = bench.hello(slot, instance=bench.instance(slot).id)
    bench.do(e.RequestsArrived(CLIENT, burst, [bytes(4)]), e.SlotOpened(slot, hello, slot))
    assert bench.sent(slot) == [[1]]


def test_a_held_batch_is_not_sent_again() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    (batch,) = bench.batches[slot]
    held = m.HeldBatch(batch.id, ((CLIENT, 1),), True)
    hello = bench.hello(slot, instance=bench.instance(slot).id, held=(held,))
    bench.do(e.SlotOpened(slot, hello, slot))
    assert bench.sent(slot) == [[1]]
    bench.finish(slot)
    assert bench.is_answered(1)


def test_results_that_come_twice_answer_once() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    (batch,) = bench.batches[slot]
    bench.finish(slot)
    bench.finish(slot, batch=batch)
    assert bench.is_answered(1)
    assert bench.world.counters.late_results == 1


def test_a_silent_worker_gets_nothing_more_and_its_requests_move_after_its_death() -> None:
    bench = Bench()
    first, second = bench.served(config(**instances(2)))
    bench.do(e.SlotSilent(second, is_killed=True))
    bench.ask(1, 2)
    assert bench.sent(first) == [[1]]
    assert bench.sent(second) == []
    bench.finish(first)
    assert bench.sent(first) == [[2]]


def test_results_of_the_wrong_length_answer_nothing() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    (batch,) = bench.batches[slot]
    bench.do(e.BatchFinished(slot, m.Results(batch.id, (), m.Durations(0, 0, 0), 0, ()), []))
    assert bench.answers == {}
    assert bench.world.counters.protocol_errors == 1


def test_the_supervisor_is_asked_for_instances_and_one_spare() -> None:
    bench = Bench()
    bench.load(config(**instances(3)))
    assert bench.wanted[-1] == m.Want("cpu", 4, ("identity",))

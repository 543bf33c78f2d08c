"""Clients that do not come back to a restarted broker at once: nobody writes to what they read."""

from __future__ import annotations

import pytest

from naiad.broker.core import events as e
from naiad.protocol import messages as m
from support.simulated_bench import CLIENT, OTHER, Bench, S, config

ARENA = m.Region(2**61, "/a", 1, 1, 4096)


def lent(bench: Bench, slot: int, *idents: int, client: int = CLIENT) -> None:
    """Each of the requests gets its answer in the worker's arena."""
    for ident in idents:
        bench.ask(ident, client=client)
        (batch,) = bench.batches.pop(slot)
        output = m.Tensor("Y", "UINT8", (4,), int(m.Place.LEASE), ARENA.id, 0, 4)
        results = m.Results(
            batch.id, (m.BatchResult(None, (output,)),), m.Durations(0, 1, 0), 0, (ARENA,)
        )
        bench.do(e.BatchFinished(slot, results, []))
        assert bench.is_answered(ident, client)


def restarted(*idents: int) -> tuple[Bench, int]:
    """A new broker, and the worker that lends these answers of CLIENT, back already."""
    bench = Bench()
    (slot,) = bench.served(config())
    lent(bench, slot, *idents)
    instance = bench.instance(slot).id
    bench = bench.restarted()
    hello = bench.hello(
        slot, instance=instance, arenas=(ARENA,), leases=tuple((CLIENT, one) for one in idents)
    )
    bench.do(e.SlotOpened(slot, hello, slot))
    bench.loaded(slot)
    return bench, slot


def returned(bench: Bench, slot: int) -> list[int]:
    """Request ids whose memory the worker may use again."""
    found = [one for one in bench.told[slot] if type(one) is m.Return]
    return [request for one in found for _, request in one.leases]


def test_what_a_stopped_client_may_read_is_kept_until_it_is_proven_dead() -> None:
    bench, slot = restarted(1, 2)
    bench.wait(3_600 * S)
    assert returned(bench, slot) == []
    bench.do(e.SessionEnded(CLIENT))
    assert sorted(returned(bench, slot)) == [1, 2]


def test_who_comes_back_late_keeps_what_it_holds_and_gives_back_the_rest() -> None:
    bench, slot = restarted(1, 2)
    bench.wait(60 * S)
    bench.do(e.SessionOpened(CLIENT, "client", 1, ((ARENA.id, 2),)))
    assert returned(bench, slot) == [1]
    bench.do(e.LeasesReleased(CLIENT, ((ARENA.id, 2),)))
    assert returned(bench, slot) == [1, 2]


def test_who_comes_back_before_the_worker_does_as_well() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    lent(bench, slot, 1, 2)
    instance = bench.instance(slot).id
    bench = bench.restarted()
    bench.do(e.SessionOpened(CLIENT, "client", 1, ((ARENA.id, 2),)))
    hello = bench.hello(slot, instance=instance, arenas=(ARENA,), leases=((CLIENT, 1), (CLIENT, 2)))
    bench.do(e.SlotOpened(slot, hello, slot))
    bench.wait(60 * S)
    assert returned(bench, slot) == [1]


def test_a_client_that_is_dead_already_holds_nothing() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    lent(bench, slot, 1)
    instance = bench.instance(slot).id
    bench = bench.restarted()
    bench.do(e.SessionEnded(CLIENT))
    hello = bench.hello(slot, instance=instance, arenas=(ARENA,), leases=((CLIENT, 1),))
    bench.do(e.SlotOpened(slot, hello, slot))
    bench.wait(60 * S)
    assert returned(bench, slot) == [1]


def test_a_finished_result_nobody_asks_for_may_be_what_an_absent_client_reads() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    (batch,) = bench.batches[slot]
    lent_answer = m.Tensor("Y", "UINT8", (4,), int(m.Place.LEASE), ARENA.id, 0, 4)
    results = m.Results(
        batch.id, (m.BatchResult(None, (lent_answer,)),), m.Durations(0, 1, 0), 0, (ARENA,)
    )
    bench.do(e.BatchFinished(slot, results, []))
    instance = bench.instance(slot).id
    bench = bench.restarted()
    held = m.HeldBatch(batch.id, ((CLIENT, 1),), True)
    hello = bench.hello(
        slot, instance=instance, held=(held,), arenas=(ARENA,), leases=((CLIENT, 1),)
    )
    bench.do(e.SlotOpened(slot, hello, slot))
    bench.loaded(slot)
    bench.do(e.BatchFinished(slot, results, []))
    bench.wait(60 * S)
    assert returned(bench, slot) == []
    bench.do(e.SessionEnded(CLIENT))
    assert returned(bench, slot) == [1]


def test_a_client_that_never_borrowed_is_not_waited_for() -> None:
    bench = Bench()
    bench.served(config())
    bench.client(OTHER)
    assert OTHER not in bench.restarted().world.sessions


def test_a_client_whose_loans_have_all_ended_is_forgotten_after_a_while() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    lent(bench, slot, 1)
    bench.do(e.LeasesReleased(CLIENT, ((ARENA.id, 1),)))
    instance = bench.instance(slot).id
    bench = bench.restarted()
    assert CLIENT in bench.world.sessions
    bench.do(e.SlotOpened(slot, bench.hello(slot, instance=instance, arenas=(ARENA,)), slot))
    bench.wait(60 * S)
    assert CLIENT not in bench.world.sessions


def test_the_next_broker_but_one_knows_of_them_too() -> None:
    bench, slot = restarted(1)
    instance = bench.instance(slot).id
    third = bench.restarted()
    hello = third.hello(slot, instance=instance, arenas=(ARENA,), leases=((CLIENT, 1),))
    third.do(e.SlotOpened(slot, hello, slot))
    third.wait(60 * S)
    assert returned(third, slot) == []


def held_by_worker(bench: Bench, slot: int, batch: int, *, finished: bool) -> m.SlotHello:
    held = m.HeldBatch(batch, ((CLIENT, 1),), finished)
    return bench.hello(
        slot, incarnation=7, instance=bench.world.models["m"].versions[1].instances[0].id,
        model="m", version=1, held=(held,), arenas=(ARENA,), leases=((CLIENT, 1),),
    )  # fmt: skip


def answered_from_the_arena(bench: Bench, slot: int, batch: int) -> None:
    output = m.Tensor("Y", "UINT8", (4,), int(m.Place.LEASE), ARENA.id, 0, 4)
    results = m.Results(batch, (m.BatchResult(None, (output,)),), m.Durations(0, 1, 0), 0, (ARENA,))
    bench.do(e.BatchFinished(slot, results, []))


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("borrowed_before", [True, False])
def test_an_answer_nobody_has_had_yet_stays_when_its_worker_says_hello_twice(
    finished: bool, borrowed_before: bool
) -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    if borrowed_before:
        lent(bench, slot, 9)
        bench.do(e.LeasesReleased(CLIENT, ((ARENA.id, 9),)))
    bench.ask(1)
    (batch,) = [one.id for one in bench.batches[slot]]
    bench = bench.restarted()
    bench.do(e.SlotOpened(slot, held_by_worker(bench, slot, batch, finished=finished), slot))
    bench.loaded(slot)
    if finished:
        answered_from_the_arena(bench, slot, batch)
    bench.wait(S)
    bench.do(e.SlotOpened(slot, held_by_worker(bench, slot, batch, finished=True), slot))
    answered_from_the_arena(bench, slot, batch)
    bench.client()
    bench.ask(1, attempt=2)
    assert bench.is_answered(1)
    assert returned(bench, slot) == []

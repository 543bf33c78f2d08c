"""Regions and leases: whose id is whose, what a request may name, what ends when."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, RequestError
from support.simulated_bench import CLIENT, MS, OTHER, Bench, S, config


def region(ident: int, size: int = 4096) -> m.Region:
    return m.Region(ident, f"/naiad.test.client.{ident}", 1, 10 + ident, size)


def offered(bench: Bench, ident: int, client: int = CLIENT, **fields: Any) -> m.Region:
    """A region of a client, registered; as the broker knows it."""
    if client not in bench.world.sessions:
        bench.client(client)
    bench.do(e.RegionOffered(client, 90 + ident, region(ident, **fields), None))
    assert bench.replies[client, 90 + ident] == (None, {})
    return bench.world.sessions[client].regions[ident]


def placed(bench: Bench, ident: int, region_id: int, offset: int = 0, size: int = 4) -> None:
    """A request whose input lies in a region."""
    tensor = m.Tensor("X", "UINT8", (4,), int(m.Place.REGION), region_id, offset, size)
    request = bench.request(ident, inputs=(tensor,))
    bench.do(e.RequestsArrived(CLIENT, (request,), []))


def test_a_worker_is_told_a_region_once_and_under_the_brokers_id() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    mine = offered(bench, 1)
    placed(bench, 1, 1)
    (batch,) = bench.batches[slot]
    assert batch.regions == (mine,)
    assert batch.requests[0].inputs[0].region == mine.id
    bench.finish(slot)
    placed(bench, 2, 1)
    assert bench.batches[slot][0].regions == ()


def test_two_clients_use_the_same_id_for_different_regions() -> None:
    bench = Bench()
    bench.served(config())
    assert offered(bench, 1).id != offered(bench, 1, client=OTHER).id


@pytest.mark.parametrize(
    ("region_id", "offset", "text"),
    [
        (2, 0, "region 2 is not registered by this client"),
        (1, 4096, "begins at 4096, the region has 4096 bytes"),
        (1, 4093, "ends at 4097, the region has 4096 bytes"),
        (2**62 + 5, 0, "it was unregistered"),
    ],
)
def test_a_range_outside_is_refused(region_id: int, offset: int, text: str) -> None:
    bench = Bench()
    bench.served(config())
    offered(bench, 1)
    placed(bench, 1, region_id, offset)
    assert text in bench.error(1)[1]


def test_a_queued_request_whose_region_is_dropped_is_cancelled() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    offered(bench, 1)
    offered(bench, 2)
    for ident, used in ((1, 1), (2, 1), (3, 2)):
        placed(bench, ident, used)
    bench.do(e.RegionDropped(CLIENT, 7, 1))
    assert bench.error(2)[0] == Code.CANCELLED
    assert "region" in bench.error(2)[1]
    bench.finish(slot)
    assert bench.sent(slot) == [[3]]


def test_an_executing_request_whose_region_is_dropped_is_answered_now_released_later() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    offered(bench, 1)
    placed(bench, 1, 1)
    bench.do(e.RegionDropped(CLIENT, 7, 1))
    assert bench.error(1)[0] == Code.CANCELLED
    assert bench.released[CLIENT] == []
    told = [type(message) for message in bench.told[slot]]
    assert told.index(m.Abandon) < told.index(m.Forget)
    bench.finish(slot)
    assert bench.released[CLIENT] == [1]


def test_a_request_is_not_sent_again_without_its_region() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    offered(bench, 1)
    placed(bench, 1, 1)
    bench.do(e.RegionDropped(CLIENT, 7, 1))
    bench.dies(slot)
    again = bench.worker()
    bench.loaded(again)
    assert bench.sent(again) == []
    assert bench.released[CLIENT] == [1]


def test_unregistering_a_name_cancels_what_uses_it() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.client()
    bench.do(e.NamedRegionStated(CLIENT, 3, "name", region(0), None, 0, 4096))
    _, result = bench.replies[CLIENT, 3]
    placed(bench, 1, result["id"])
    placed(bench, 2, result["id"])
    bench.control("region_unregister", name="name")
    assert {bench.error(1)[0], bench.error(2)[0]} == {Code.CANCELLED}
    assert m.Forget((result["id"],)) in bench.told[slot]
    bench.finish(slot)
    assert sorted(bench.released[CLIENT]) == [1, 2]


def test_a_named_region_survives_the_broker() -> None:
    bench = Bench()
    bench.served(config())
    bench.client()
    bench.do(e.NamedRegionStated(CLIENT, 3, "name", region(0), None, 16, 64))
    status = bench.control("region_status")
    assert [(one["name"], one["offset"], one["byte_size"]) for one in status] == [("name", 16, 64)]
    assert bench.restarted().control("region_status") == status


def test_names_are_free_again_after_unregistering() -> None:
    bench = Bench()
    bench.client()
    bench.do(e.NamedRegionStated(CLIENT, 1, "name", region(0), None, 0, 64))
    with pytest.raises(RequestError, match="already in manager"):
        bench.control("region_register", name="name", key="/x", byte_size=64)
    bench.control("region_unregister", name="unknown")
    bench.control("region_unregister")
    assert bench.control("region_status") == []
    bench.do(e.NamedRegionStated(CLIENT, 2, "name", region(0), None, 0, 64))
    assert bench.replies[CLIENT, 2][0] is None


def test_another_region_under_a_used_id_is_refused_the_same_again_is_not() -> None:
    bench = Bench()
    offered(bench, 1)
    bench.do(e.RegionOffered(CLIENT, 4, region(1), None))
    assert bench.replies[CLIENT, 4] == (None, {})
    bench.do(e.RegionOffered(CLIENT, 5, region(1, size=9), None))
    error, _ = bench.replies[CLIENT, 5]
    assert error is not None
    assert error.code is Code.ALREADY_EXISTS


def lent(bench: Bench, slot: int, ident: int = 1) -> tuple[int, int]:
    """A request answered with an output in the worker's arena; the client's lease."""
    arena = m.Region(2**61 + slot, "/naiad.test.worker", 1, 99, 1 << 20)
    (batch,) = bench.batches[slot]
    bench.batches[slot] = []
    output = m.Tensor("Y", "UINT8", (4,), int(m.Place.LEASE), arena.id, 0, 4)
    results = m.Results(batch.id, (m.BatchResult(None, (output,)),), m.Durations(0, 1, 0), 0,
                        (arena,))  # fmt: skip
    bench.do(e.BatchFinished(slot, results, []))
    assert bench.is_answered(ident)
    return arena.id, ident


def test_a_lease_ends_when_the_client_releases_it() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.LeasesReleased(CLIENT, (lent(bench, slot),)))
    assert bench.told[slot][-1] == m.Return(((CLIENT, 1),))


def test_a_lease_ends_with_its_session() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    lent(bench, slot)
    bench.do(e.SessionEnded(CLIENT))
    assert bench.told[slot][-1] == m.Return(((CLIENT, 1),))


def test_a_late_result_gives_its_lease_back_at_once() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.CancelAsked(CLIENT, (1,)))
    (batch,) = bench.batches[slot]
    output = m.Tensor("Y", "UINT8", (4,), int(m.Place.LEASE), 2**61, 0, 4)
    result = m.BatchResult(None, (output,))
    results = m.Results(batch.id, (result,), m.Durations(0, 1, 0), 0, ())
    bench.do(e.BatchFinished(slot, results, []))
    assert m.Return(((CLIENT, 1),)) in bench.told[slot]


def test_a_client_that_stays_away_keeps_its_leases_and_regions_while_it_lives() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    offered(bench, 1)
    bench.ask(1)
    lent(bench, slot)
    bench.do(e.SessionLost(CLIENT))
    bench.wait(60 * S)
    told = [type(message) for message in bench.told[slot]]
    assert m.Return not in told
    assert m.Forget not in told
    bench.do(e.SessionEnded(CLIENT))
    assert bench.told[slot][-1] == m.Return(((CLIENT, 1),))


def test_the_queued_work_of_a_client_that_stays_away_is_dropped_what_executes_is_kept() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    bench.do(e.SessionLost(CLIENT))
    bench.wait(3 * S)
    bench.finish(slot)
    assert bench.sent(slot) == []
    bench.client()
    bench.ask(2, attempt=2)
    assert bench.is_answered(1)
    assert bench.sent(slot) == [[2]]


def test_a_client_without_anything_is_forgotten_when_it_stays_away() -> None:
    bench = Bench()
    bench.client()
    bench.do(e.SessionLost(CLIENT))
    bench.wait(1_900 * MS)
    assert CLIENT in bench.world.sessions
    bench.wait(200 * MS)
    assert CLIENT not in bench.world.sessions


def test_a_return_lost_with_the_workers_connection_is_told_again() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    lease = lent(bench, slot)
    bench.do(e.LeasesReleased(CLIENT, (lease,)))
    bench.told[slot].clear()
    bench.wait(1)
    hello = bench.hello(slot, instance=bench.instance(slot).id, leases=((CLIENT, 1), (CLIENT, 2)))
    bench.do(e.SlotOpened(slot, hello, slot))
    returned = [one for one in bench.told[slot] if type(one) is m.Return]
    assert returned == [m.Return(((CLIENT, 1),))]


def test_leases_of_an_earlier_broker_end_unless_their_holder_returns() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    arena, _ = lent(bench, slot)
    instance = bench.instance(slot).id
    bench = bench.restarted()
    bench.do(e.SessionOpened(CLIENT, "client", 1, ((arena, 1),)))
    hello = bench.hello(
        slot, instance=instance, arenas=(m.Region(arena, "/a", 1, 1, 9),),
        leases=((CLIENT, 1), (OTHER, 1)),
    )  # fmt: skip
    bench.do(e.SlotOpened(slot, hello, slot))
    bench.wait(10 * S)
    assert bench.told[slot][-1] == m.Return(((OTHER, 1),))
    bench.do(e.SessionEnded(CLIENT))
    assert bench.told[slot][-1] == m.Return(((CLIENT, 1),))


def test_a_result_that_its_client_reads_already_is_not_given_up_with_the_orphans() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    (batch,) = bench.batches[slot]
    arena, _ = lent(bench, slot)
    instance = bench.instance(slot).id
    bench = bench.restarted()
    bench.do(e.SessionOpened(CLIENT, "client", 1, ((arena, 1),)))
    held = m.HeldBatch(batch.id, ((CLIENT, 1),), True)
    hello = bench.hello(
        slot, instance=instance, held=(held,), arenas=(m.Region(arena, "/a", 1, 1, 9),),
        leases=((CLIENT, 1),),
    )  # fmt: skip
    bench.do(e.SlotOpened(slot, hello, slot))
    bench.loaded(slot)
    output = m.Tensor("Y", "UINT8", (4,), int(m.Place.LEASE), arena, 0, 4)
    message = m.Results(batch.id, (m.BatchResult(None, (output,)),), m.Durations(0, 1, 0), 0, ())
    bench.do(e.BatchFinished(slot, message, []))
    bench.wait(20 * S)
    assert [one for one in bench.told[slot] if type(one) is m.Return] == []
    bench.do(e.LeasesReleased(CLIENT, ((arena, 1),)))
    assert bench.told[slot][-1] == m.Return(((CLIENT, 1),))


def test_the_lease_of_an_answer_that_was_lost_ends_when_the_request_is_sent_again() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    lent(bench, slot)
    bench.do(e.SessionLost(CLIENT))
    bench.client()
    bench.ask(1, attempt=2)
    assert m.Return(((CLIENT, 1),)) in bench.told[slot]
    bench.finish(slot)
    assert bench.world.sessions[CLIENT].leases == {}

"""Killed workers that do not die: nobody waits for them, and nobody gets what they have."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.broker.core.instances import InstanceState
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, MS, Bench, batching, config, parameters

KILL_NS = Limits().kill_ns


def hung(*asked: int) -> tuple[Bench, int]:
    """A worker that was killed while it executed, and the moment at which it is LOST."""
    bench = Bench()
    (slot,) = bench.served(config(**batching(), **parameters(execution_timeout_ms=100)))
    bench.ask(*asked, rows=1)
    bench.wait(101 * MS)
    assert bench.killed == [slot]
    return bench, slot


def test_a_killed_worker_serves_no_more() -> None:
    bench, _ = hung(1)
    assert not bench.control("model_ready", model="m")["ready"]
    bench.ask(2, rows=1)
    bench.wait(KILL_NS - 10 * MS)
    assert not bench.answers[CLIENT, 1]


def test_its_requests_end_and_their_memory_stays_taken_until_it_is_dead() -> None:
    bench, slot = hung(1, 2)
    bench.wait(KILL_NS)
    for ident in (1, 2):
        code, text = bench.error(ident)
        assert code == Code.WORKER_DIED
        assert "it was killed and does not die" in text
    assert bench.released[CLIENT] == []
    bench.do(e.SlotDied(slot, "killed", 0, True))
    assert sorted(bench.released[CLIENT]) == [1, 2]


def test_another_worker_gets_its_instance_and_what_waits() -> None:
    bench, slot = hung(1)
    bench.ask(2, rows=1)
    bench.wait(KILL_NS)
    fresh = bench.worker()
    bench.loaded(fresh)
    assert bench.sent(fresh) == [[2]]
    bench.finish(fresh)
    assert bench.is_answered(2)
    bench.do(e.SlotDied(slot, "killed", 0, True))
    assert bench.model().instances[0].state is InstanceState.READY


def test_one_more_worker_is_wanted_because_the_supervisor_counts_the_lost_one() -> None:
    bench, slot = hung(1)
    before = bench.wanted[-1].slots
    bench.wait(KILL_NS)
    assert bench.wanted[-1].slots == before + 1
    bench.do(e.SlotDied(slot, "killed", 0, True))
    assert bench.wanted[-1].slots == before


def test_the_status_tells_of_it() -> None:
    bench, _ = hung(1)
    bench.wait(KILL_NS)
    status = bench.control("status")
    assert "LOST" in [row["state"] for row in status["instances"]]
    assert status["counters"]["worker_deaths"]["it was killed and does not die"] == 1


def test_results_that_were_on_their_way_are_late() -> None:
    bench, slot = hung(1)
    (batch,) = bench.batches[slot]
    bench.wait(KILL_NS)
    bench.finish(slot, batch=batch)
    assert len(bench.answers[CLIENT, 1]) == 1


def test_the_server_ends_without_it() -> None:
    bench, _ = hung(1)
    bench.wait(KILL_NS)
    bench.do(e.DrainAsked(bench.now_ns + 60_000 * MS))
    assert bench.quit_code == 1


def test_an_unloaded_model_does_not_wait_for_it() -> None:
    bench, _ = hung(1)
    call = bench.ask_control("unload", model="m")
    bench.wait(KILL_NS)
    assert bench.replies[CLIENT, call][0] is None
    assert bench.index()[0]["state"] == "UNAVAILABLE"


def test_one_that_unloads_may_take_its_time() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.do(e.SlotSilent(slot, is_killed=False))
    bench.wait(10 * KILL_NS)
    assert not bench.world.slots[slot].is_lost
    assert all(type(one) is not m.Released for one in bench.told[slot])

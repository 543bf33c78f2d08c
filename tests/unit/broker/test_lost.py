"""Killed workers that do not die: nobody waits for them, and nobody gets what they have."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.broker.core.instances import InstanceState
from naiad.broker.core.models import ModelState
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, MS, Bench, batching, config, instances, parameters

KILL_NS = Limits().kill_ns
LOST_MAX = Limits().lost_workers_max


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


# --- again and again -----------------------------------------------------------------------------


def lose(bench: Bench, slot: int, count: int) -> list[int]:
    """So many workers of one instance in a row are killed and do not die; which."""
    instance = bench.instance(slot)
    found = [slot]
    while True:
        bench.do(e.SlotSilent(found[-1], is_killed=True))
        bench.wait(KILL_NS)
        assert bench.world.slots[found[-1]].is_lost
        if len(found) == count:
            return found
        while instance.state is InstanceState.BACKOFF:
            bench.wait(100 * MS)
        found.append(bench.worker())
        bench.loaded(found[-1])


def test_a_second_lost_worker_is_replaced_after_a_pause() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    instance = bench.instance(slot)
    lose(bench, slot, 2)
    states = [instance.state]
    bench.wait(Limits().restart_first_ns)
    assert [*states, instance.state] == ["BACKOFF", "WAITING"]


def test_an_instance_with_too_many_lost_workers_gets_no_other() -> None:
    """Each of them keeps what memory it has, for as long as it does not die."""
    bench = Bench()
    (slot,) = bench.served(config())
    before = bench.wanted[-1].slots
    lose(bench, slot, LOST_MAX)
    bench.wait(10 * KILL_NS)
    model = bench.model()
    assert model.state is ModelState.UNAVAILABLE
    assert f"{LOST_MAX} of its workers were killed and do not die" in model.reason
    assert bench.wanted[-1].slots == before - 1 + LOST_MAX, "they are counted, it is not"


def test_it_is_loaded_again_when_one_of_them_is_dead() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching()))
    lost = lose(bench, slot, LOST_MAX)
    fresh = bench.worker()
    bench.do(e.SlotDied(lost[1], "killed", 0, True))
    bench.loaded(fresh)
    assert bench.model().is_ready
    bench.ask(9, rows=1)
    bench.finish(fresh)
    assert bench.is_answered(9)


def test_other_instances_serve_on_without_it() -> None:
    bench = Bench()
    _, slot = bench.served(config(**instances(2)))
    instance = bench.instance(slot)
    lost = lose(bench, slot, LOST_MAX)
    assert bench.model().is_ready
    states = [instance.state]
    (row,) = bench.control("status")["models"]
    assert f"{LOST_MAX} of its workers were killed and do not die" in row["reason"]
    bench.do(e.SlotDied(lost[0], "killed", 0, True))
    assert [*states, instance.state] == ["FATAL", "WAITING"]


def test_a_model_that_crashes_as_well_waits_for_one_of_them_too() -> None:
    bench = Bench()
    first, second = bench.served(config(**{**instances(2), **parameters(crash_budget=1)}))
    held = bench.instance(first)
    lost = lose(bench, first, LOST_MAX)
    bench.ask(1)
    bench.dies(second, executing=bench.batches[second][0].id)
    assert bench.model().state is ModelState.UNAVAILABLE
    bench.wait(2 * Limits().retry_first_ns)
    bench.loaded(bench.worker())
    assert bench.model().is_ready
    states = [held.state]
    bench.do(e.SlotDied(lost[0], "killed", 0, True))
    assert [*states, held.state] == ["FATAL", "WAITING"]


def test_the_last_of_several_instances_takes_the_model_with_it() -> None:
    bench = Bench()
    first, second = bench.served(config(**instances(2)))
    lost = [lose(bench, slot, LOST_MAX) for slot in (first, second)]
    assert bench.model().state is ModelState.UNAVAILABLE
    bench.do(e.SlotDied(lost[1][0], "killed", 0, True))
    bench.loaded(bench.worker())
    assert bench.model().is_ready
    assert [one.state for one in bench.model().instances] == ["FATAL", "READY"]


def test_an_unloaded_model_does_not_come_back_with_the_death_of_one() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    lost = lose(bench, slot, LOST_MAX)
    bench.ask_control("unload", model="m")
    for one in lost:
        bench.do(e.SlotDied(one, "killed", 0, True))
    assert bench.index()[0]["state"] == "UNAVAILABLE"
    assert not bench.world.instances


def test_lost_spares_are_replaced_so_many_times() -> None:
    bench = Bench()
    bench.served(config())
    before = bench.wanted[-1].slots
    for _ in range(LOST_MAX + 2):
        bench.do(e.SlotSilent(bench.worker(), is_killed=True))
        bench.wait(KILL_NS)
    assert bench.wanted[-1].slots == before + LOST_MAX

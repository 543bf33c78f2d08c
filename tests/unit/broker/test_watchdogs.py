"""The watches over loads and executions keep nothing alive and do not pile up."""

from __future__ import annotations

import gc

from naiad.broker.core.models import ModelVersion
from support.simulated_bench import MS, Bench, S, config, parameters
from support.simulated_restart import back, crashed, held


def test_a_model_that_is_gone_is_not_kept_by_the_watch_over_its_load() -> None:
    bench = Bench()
    (slot,) = bench.served(config(), edition="gone")
    assert is_in_memory("/models/m/gone")
    gc.disable()  # as in the broker, where a collection can take long
    try:
        bench.control("unload", model="m")
        bench.dies(slot, ordered=True)
        bench.served(config(), edition="1")
        assert not is_in_memory("/models/m/gone")
    finally:
        gc.enable()


def is_in_memory(directory: str) -> bool:
    """Whether a model of this directory is. Compiled ones take no weak references."""
    models = [one for one in gc.get_objects() if type(one) is ModelVersion]
    return any(model.directory == directory for model in models)


def test_a_load_that_takes_too_long_is_given_up() -> None:
    bench = Bench()
    bench.load(config(**parameters(load_timeout_s=2)))
    slot = bench.worker()
    bench.wait(1 * S)
    assert bench.killed == []
    bench.wait(1 * S)
    assert set(bench.killed) == {slot}
    assert "naiad.load_timeout_s = 2 s" in bench.model().reason


def test_a_load_in_time_is_left_alone() -> None:
    bench = Bench()
    bench.served(config(**parameters(load_timeout_s=2)))
    bench.wait(3 * S)
    assert bench.killed == []


def test_each_execution_has_the_whole_time() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(execution_timeout_ms=100)))
    for ident in (1, 2, 3):
        bench.ask(ident)
        bench.wait(80 * MS)
        bench.finish(slot)
    assert bench.killed == []
    bench.wait(1 * S)
    bench.ask(4)
    bench.wait(99 * MS)
    assert bench.killed == []
    bench.wait(1 * MS)
    assert bench.killed == [slot]


def test_an_execution_that_goes_on_over_a_restart_of_the_broker_has_a_limit_as_well() -> None:
    bench, slot, instance, (batch,) = crashed(config(**parameters(execution_timeout_ms=100)), 1)
    back(bench, slot, instance, held(batch, 1))
    bench.wait(90 * MS)
    assert bench.killed == []
    bench.wait(20 * MS)
    assert bench.killed == [slot]


def test_many_executions_leave_one_watch() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(execution_timeout_ms=60_000)))
    for ident in range(1, 101):
        bench.ask(ident)
        bench.wait(1 * MS)
        bench.finish(slot)
    end_ns = bench.now_ns + 120 * S
    wakes = 0
    while bench.scheduler.deadline_ns() <= end_ns:
        bench.wait(bench.scheduler.deadline_ns() - bench.now_ns)
        wakes += 1
    assert wakes <= 2
    assert bench.killed == []

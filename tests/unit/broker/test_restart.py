"""A broker after a restart: models without a worker, an unfinished start, a clean end before."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.broker.core.scheduler import Scheduler
from support.simulated_bench import Bench, config


def after(bench: Bench, names: tuple[str, ...] | None) -> tuple[Scheduler, list[e.Action]]:
    """The next broker, which is told to load `names`, and its first actions."""
    scheduler = Scheduler(
        incarnation=2, server="bench", software="0", first_number=bench.world.number() + 1_000
    )
    return scheduler, scheduler.start(names, bench.scheduler.snapshot(), bench.now_ns)


def test_a_model_whose_workers_died_with_the_broker_is_not_forgotten() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.dies(slot)
    again = bench.restarted()
    again.ask(1)
    assert not again.answers
    slot = again.worker()
    again.loaded(slot)
    again.finish(slot)
    assert again.is_answered(1)


def test_the_index_goes_on_to_say_why_a_model_could_not_be_had() -> None:
    bench = Bench()
    bench.ask_control("load", model="m")
    bench.scanned(config(), faults=["config.pbtxt:1:1: no such field"])
    (row,) = bench.index()
    assert "no such field" in row["reason"]
    assert bench.restarted().index() == [row]


def test_a_start_that_was_not_finished_begins_anew() -> None:
    first = Scheduler(incarnation=1, server="bench", software="0", first_number=1)
    first.start(None, None, 1)
    bench = Bench()
    bench.scheduler = first
    bench.world = first.world
    bench.worker()
    assert bench.scheduler.snapshot()["slots"]
    _, actions = after(bench, None)
    assert [one for one in actions if type(one) is e.ScanRepository]


def test_what_was_served_before_a_crash_is_not_scanned_again() -> None:
    bench = Bench()
    bench.served(config())
    scheduler, actions = after(bench, None)
    assert not [one for one in actions if type(one) is e.ScanRepository]
    assert "m" in scheduler.world.models


def test_after_a_clean_end_the_repository_is_read_anew() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.do(e.DrainAsked(bench.now_ns + 10**9))
    bench.dies(slot, ordered=True)
    assert bench.quit_code == 0
    scheduler, actions = after(bench, None)
    assert [one for one in actions if type(one) is e.ScanRepository]
    assert not scheduler.world.models


def test_after_a_drain_that_ran_out_of_time_as_well() -> None:
    bench = Bench()
    bench.served(config())
    bench.ask(1)
    bench.do(e.DrainAsked(bench.now_ns + 10**9))
    bench.wait(4 * 10**9)
    assert bench.quit_code == 1
    assert bench.scheduler.snapshot()["models"] == []
    _, actions = after(bench, None)
    assert [one for one in actions if type(one) is e.ScanRepository]

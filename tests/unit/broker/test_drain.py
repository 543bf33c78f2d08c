"""The end in order: finish, refuse, stop, quit."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.broker.core.world import Limits
from naiad.protocol.errors import Code
from support.simulated_bench import (
    CLIENT,
    MS,
    Bench,
    S,
    batching,
    config,
)

LOAD_ERROR = (str(Code.LOAD_FAILED), "initialize raised", False)


def test_drain_finishes_what_is_there_refuses_what_comes_and_quits() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    bench.do(e.DrainAsked(bench.now_ns + 10 * S))
    assert bench.wanted[-1].slots == 0
    assert not bench.control("ready")["ready"]
    bench.ask(3)
    assert bench.error(3)[0] == Code.DRAINING
    bench.finish(slot)
    bench.finish(slot)
    assert bench.is_answered(1)
    assert bench.is_answered(2)
    assert bench.is_stopped(slot)
    assert bench.quit_code is None
    bench.dies(slot)
    assert bench.quit_code == 0


def test_drain_fails_what_no_worker_is_left_for() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    bench.do(e.DrainAsked(bench.now_ns + 10 * S))
    bench.dies(slot, executing=bench.batches[slot][0].id)
    assert {bench.error(1)[0], bench.error(2)[0]} == {Code.DRAINING}
    assert bench.quit_code == 0


def test_a_drain_that_takes_too_long_gives_up_with_an_exit_code() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(1)))
    bench.ask(1, 2, rows=1)
    bench.do(e.DrainAsked(bench.now_ns + 100 * MS))
    bench.wait(100 * MS)
    assert bench.error(2)[0] == Code.DRAINING
    assert bench.killed == [slot]
    assert not bench.answers[CLIENT, 1]  # it may still be written to
    bench.dies(slot, ordered=True)
    assert bench.error(1)[0] == Code.DRAINING
    assert bench.quit_code == 1


def test_a_worker_that_does_not_die_does_not_hold_the_end_up_for_long() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.DrainAsked(bench.now_ns + 100 * MS))
    bench.wait(100 * MS + Limits().drain_kill_ns)
    assert bench.killed == [slot]
    assert not bench.answers[CLIENT, 1]
    assert bench.quit_code == 1


def test_drain_with_nothing_to_do_quits_at_once() -> None:
    bench = Bench()
    bench.do(e.DrainAsked(bench.now_ns + S))
    assert bench.quit_code == 0

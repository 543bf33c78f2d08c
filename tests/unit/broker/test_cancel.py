"""Cancelled requests: the answer at once, RELEASED when no process has the memory any more."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import (
    CLIENT,
    OTHER,
    Bench,
    config,
)


def test_cancelling_a_queued_request_answers_and_releases_at_once() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    bench.do(e.CancelAsked(CLIENT, (2, 77)))
    assert bench.error(2)[0] == Code.CANCELLED
    assert bench.order == [("answer", 2), ("released", 2)]
    bench.finish(slot)
    assert bench.sent(slot) == []


def test_cancelling_an_executing_request_answers_now_and_releases_later() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.CancelAsked(CLIENT, (1,)))
    assert bench.order == [("answer", 1)]
    assert m.Abandon(((CLIENT, 1),)) in bench.told[slot]
    bench.finish(slot)
    assert bench.order == [("answer", 1), ("released", 1)]
    assert bench.world.counters.late_results == 1


def test_a_cancelled_request_is_released_when_its_worker_dies() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.CancelAsked(CLIENT, (1,)))
    bench.dies(slot, executing=bench.batches[slot][0].id)
    assert bench.order == [("answer", 1), ("released", 1)]


def test_the_end_of_a_session_cancels_its_work_and_nobody_elses() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    bench.ask(3, client=OTHER)
    bench.do(e.SessionEnded(CLIENT))
    assert m.Abandon(((CLIENT, 1),)) in bench.told[slot]
    bench.finish(slot)
    assert bench.sent(slot) == [[3]]
    bench.finish(slot)
    assert bench.is_answered(3, OTHER)
    assert not bench.model().executing

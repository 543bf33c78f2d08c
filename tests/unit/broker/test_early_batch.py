"""The late second batch: when it goes, and that its requests count as queued until it starts."""

from __future__ import annotations

from support.simulated_bench import (
    MS,
    US,
    Bench,
    S,
    batching,
    config,
    instances,
    parameters,
)


def primed(took_ns: int = 5 * MS, **fields: object) -> tuple[Bench, int]:
    """A model whose worker was seen to take this long for one row, now busy since this moment."""
    bench = Bench()
    (slot,) = bench.served(config(**{**batching(4), **fields}))
    for ident in (101, 102):
        bench.ask(ident, rows=1)
        if ident == 101:
            bench.finish(slot, took_ns=took_ns)
    return bench, slot


def test_the_next_batch_goes_out_just_before_the_predicted_end() -> None:
    bench, slot = primed()
    bench.ask(1, 2, rows=1)
    bench.wait(4_900 * US)
    assert bench.sent(slot) == [[102]]
    bench.wait(100 * US)
    assert bench.sent(slot) == [[102], [1, 2]]
    assert bench.world.counters.early_batches == 1


def test_at_most_one_batch_is_sent_ahead() -> None:
    bench, slot = primed()
    bench.ask(*range(1, 20), rows=1)
    bench.wait(60 * S)
    assert bench.sent(slot) == [[102], [1, 2, 3, 4]]


def test_without_a_prediction_nothing_is_sent_ahead() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    bench.wait(60 * S)
    assert bench.sent(slot) == [[1]]


def test_late_batches_can_be_switched_off() -> None:
    bench, slot = primed(**parameters(late_batch=False))
    bench.ask(1, rows=1)
    bench.wait(60 * S)
    assert bench.sent(slot) == [[102]]


def test_an_idle_instance_is_preferred_to_an_early_batch() -> None:
    bench = Bench()
    first, second = bench.served(config(**batching(1), **instances(2)))
    bench.ask(1, 2, 3, rows=1)
    bench.finish(first, took_ns=5 * MS)
    bench.finish(second, took_ns=5 * MS)
    bench.finish(first if bench.batches[first] else second, took_ns=5 * MS)
    bench.ask(4, rows=1)
    bench.wait(6 * MS)
    bench.ask(5, rows=1)
    assert bench.sent(first) + bench.sent(second) in ([[4], [5]], [[5], [4]])


def test_an_early_batch_keeps_the_rules_of_delay() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(4, max_queue_delay_microseconds=20_000)))
    bench.ask(101, 102, 103, 104, rows=1)
    bench.finish(slot, took_ns=5 * MS)
    bench.ask(105, 106, 107, 108, rows=1)
    bench.ask(1, rows=1)
    bench.wait(19 * MS)
    assert bench.sent(slot) == [[105, 106, 107, 108]]
    bench.wait(1 * MS)
    assert bench.sent(slot) == [[105, 106, 107, 108], [1]]


def test_early_requests_become_executing_when_the_running_batch_ends() -> None:
    bench, slot = primed()
    bench.ask(1, rows=1)
    bench.wait(5 * MS)
    status = bench.control("status")["models"][0]
    assert (status["queued"], status["executing"]) == (1, 1)
    bench.finish(slot)
    status = bench.control("status")["models"][0]
    assert (status["queued"], status["executing"]) == (0, 1)
    bench.finish(slot)
    assert bench.is_answered(1)


def test_an_early_batch_of_a_dead_worker_is_not_suspect() -> None:
    bench, slot = primed()
    bench.ask(1, rows=1)
    bench.wait(5 * MS)
    bench.dies(slot, executing=bench.batches[slot][0].id)
    slot = bench.worker()
    bench.loaded(slot)
    assert bench.sent(slot) == [[102]], "the suspect alone"
    bench.finish(slot)
    assert bench.sent(slot) == [[1]]


def test_the_running_batch_and_the_early_one_lost_their_worker_between_them() -> None:
    """The first batch had ended, its results did not arrive, the second was being executed."""
    bench, slot = primed()
    bench.ask(1, rows=1)
    bench.wait(5 * MS)
    bench.dies(slot, executing=bench.batches[slot][1].id)
    slot = bench.worker()
    bench.loaded(slot)
    assert bench.sent(slot) == [[1]], "the suspect first and alone"
    bench.finish(slot)
    assert bench.sent(slot) == [[102]]


def test_no_early_batch_follows_a_suspect() -> None:
    bench, slot = primed()
    bench.ask(1, rows=1)
    bench.dies(slot, executing=bench.batches[slot][0].id)
    slot = bench.worker()
    bench.loaded(slot)
    bench.wait(60 * S)
    assert bench.sent(slot) == [[102]]

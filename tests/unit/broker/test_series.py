"""Short executions of a model that does not batch: sent together, run and counted one by one."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core.prediction import SERIES_NS_MAX, SERIES_REQUESTS_MAX, Prediction
from naiad.protocol.errors import Code
from support.simulated_bench import MS, US, Bench, batching, config, instances, parameters


def primed(took_ns: int = 50 * US, **fields: Any) -> tuple[Bench, int]:
    """A model whose worker was seen to take this long, now busy with request 102."""
    bench = Bench()
    (slot,) = bench.served(config(**fields))
    bench.ask(101)
    bench.finish(slot, took_ns=took_ns)
    bench.ask(102)
    return bench, slot


def next_sent(bench: Bench, slot: int) -> list[int]:
    """What goes to the worker when its running batch is done."""
    bench.finish(slot, took_ns=50 * US)
    return bench.sent(slot)[0]


def test_what_waits_for_a_short_execution_goes_in_one_message_in_order() -> None:
    bench, slot = primed()
    bench.ask(1, 2, 3)
    assert next_sent(bench, slot) == [1, 2, 3]
    bench.finish(slot, took_ns=150 * US)
    assert all(bench.is_answered(ident) for ident in (1, 2, 3))


@pytest.mark.parametrize(
    ("took_ns", "expected"),
    [
        (1 * US, SERIES_REQUESTS_MAX),
        (100 * US, SERIES_NS_MAX // (100 * US)),
        (SERIES_NS_MAX // 2 + 1, 1),
        (5 * MS, 1),
    ],
)
def test_a_series_takes_no_longer_than_a_hand_over(took_ns: int, expected: int) -> None:
    prediction = Prediction()
    assert prediction.series() == 1, "nothing is known yet"
    prediction.observe_each(took_ns)
    assert prediction.series() == expected


def test_nothing_is_sent_in_series_before_an_execution_was_seen() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2, 3)
    assert bench.sent(slot) == [[1]]


def test_the_late_batch_is_a_series_as_well() -> None:
    bench, slot = primed(20 * US)
    bench.ask(1, 2, 3)
    bench.wait(1 * MS)
    assert bench.sent(slot) == [[102], [1, 2, 3]]


def test_idle_workers_share_what_waits() -> None:
    bench = Bench()
    first, second = bench.served(config(**instances(2)))
    bench.ask(101, 102)
    bench.finish(first, took_ns=10 * US)
    bench.finish(second, took_ns=10 * US)
    bench.ask(1, 2, 3, 4)
    assert sorted(bench.sent(first) + bench.sent(second)) == [[1, 2], [3, 4]]


def test_what_must_not_run_twice_goes_alone() -> None:
    bench, slot = primed(**parameters(retry=False))
    bench.ask(1, 2, 3)
    assert next_sent(bench, slot) == [1]


def test_a_batch_is_no_series() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(2)))
    bench.ask(101, rows=1)
    bench.finish(slot, took_ns=1 * US)
    bench.ask(1, 2, 3, 4, rows=1)
    assert bench.sent(slot) == [[1, 2]]


def test_statistics_tell_of_single_executions() -> None:
    bench, slot = primed()
    bench.ask(1, 2, 3, 4)
    bench.finish(slot, took_ns=50 * US)
    bench.wait(10 * US)
    bench.finish(slot, took_ns=200 * US)
    found = bench.control("statistics", model="m")["model_stats"][0]
    assert (found["inference_count"], found["execution_count"]) == (6, 6)
    (sized,) = found["batch_stats"]
    assert sized["batch_size"] == 1
    assert sized["compute_infer"] == {"count": 6, "ns": (50 + 50 + 200) * US}
    stats = found["inference_stats"]
    assert stats["compute_infer"] == {"count": 6, "ns": (50 + 50 + 200) * US}
    # The second, third and fourth also waited for those before them in their series.
    assert stats["queue"]["ns"] == (50 + 100 + 150) * US
    assert bench.model().statistics.batch_reasons["alone"] == 6


def test_an_error_in_a_series_is_no_execution_that_succeeded() -> None:
    bench, slot = primed()
    bench.ask(1, 2)
    bench.finish(slot, took_ns=50 * US)
    bench.finish(slot, took_ns=100 * US, error=(str(Code.MODEL_ERROR), "no", False))
    found = bench.control("statistics", model="m")["model_stats"][0]
    assert (found["execution_count"], found["inference_stats"]["fail"]["count"]) == (2, 2)


def test_a_death_in_a_series_makes_each_of_it_a_suspect_that_runs_alone() -> None:
    bench, slot = primed()
    bench.ask(1, 2, 3)
    assert next_sent(bench, slot) == [1, 2, 3]
    bench.dies(slot, executing=bench.batches[slot][0].id)
    again = bench.worker()
    bench.loaded(again)
    assert bench.sent(again) == [[1]]
    for ident in (1, 2, 3):
        assert bench.sent(again)[0] == [ident]
        bench.finish(again, took_ns=50 * US)
        assert bench.is_answered(ident)


def test_one_long_execution_ends_the_series_for_a_while() -> None:
    prediction = Prediction()
    for _ in range(10):
        prediction.observe_each(20 * US)
    prediction.observe_each(10 * MS)
    assert prediction.series() == 1
    for _ in range(30):
        prediction.observe_each(20 * US)
    assert prediction.series() > 10

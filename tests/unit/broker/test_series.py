"""Short executions of a model that does not batch: several are sent at once, each on its own."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.prediction import SERIES_NS_MAX, SERIES_REQUESTS_MAX, Prediction
from naiad.broker.core.world import Limits
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


def shared() -> tuple[Bench, int, int]:
    """Two quick workers that were idle when four requests came."""
    bench = Bench()
    first, second = bench.served(config(**instances(2)))
    bench.ask(101, 102)
    bench.finish(first, took_ns=10 * US)
    bench.finish(second, took_ns=10 * US)
    bench.ask(1, 2, 3, 4)
    return bench, first, second


def next_sent(bench: Bench, slot: int) -> list[list[int]]:
    """What goes to the worker when its running batch is done."""
    bench.finish(slot, took_ns=50 * US)
    return bench.sent(slot)


def test_what_waits_for_a_short_execution_is_sent_at_once_and_in_order() -> None:
    bench, slot = primed()
    bench.ask(1, 2, 3)
    assert next_sent(bench, slot) == [[1], [2], [3]]
    for ident in (1, 2, 3):
        bench.finish(slot, took_ns=50 * US)
        assert bench.is_answered(ident)


@pytest.mark.parametrize(
    ("took_ns", "expected"),
    [
        (1 * US, SERIES_REQUESTS_MAX),
        (100 * US, SERIES_NS_MAX // (100 * US)),
        (SERIES_NS_MAX // 2 + 1, 1),
        (5 * MS, 1),
    ],
)
def test_a_series_takes_no_longer_than_it_may(took_ns: int, expected: int) -> None:
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
    assert bench.sent(slot) == [[102], [1], [2], [3]]


def test_idle_workers_share_what_waits() -> None:
    bench, first, second = shared()
    assert sorted([bench.sent(first), bench.sent(second)]) == [[[1], [2]], [[3], [4]]]


def test_what_must_not_run_twice_goes_alone() -> None:
    bench, slot = primed(**parameters(retry=False))
    bench.ask(1, 2, 3)
    assert next_sent(bench, slot) == [[1]]


def test_a_batch_is_no_series() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(2)))
    bench.ask(101, rows=1)
    bench.finish(slot, took_ns=1 * US)
    bench.ask(1, 2, 3, 4, rows=1)
    assert bench.sent(slot) == [[1, 2]]


def test_users_take_turns_also_in_a_series() -> None:
    bench, slot = primed()
    bench.ask(1, 2, fairness_key="ada")
    bench.ask(3, fairness_key="ben")
    assert next_sent(bench, slot) == [[1], [3], [2]]


# --- behind a long execution -------------------------------------------------------------------


def given_back(bench: Bench, slot: int, *idents: int) -> None:
    """Its worker returns the batches of these requests."""
    back = [one for one in bench.batches[slot] if one.requests[0].id in idents]
    bench.batches[slot] = [one for one in bench.batches[slot] if one not in back]
    bench.do(e.BatchesGivenBack(slot, tuple(one.id for one in back)))


def test_what_is_given_back_waits_in_its_place_and_nothing_follows() -> None:
    bench, slot = primed()
    bench.ask(1, 2, 3)
    assert next_sent(bench, slot) == [[1], [2], [3]]
    bench.ask(4)
    given_back(bench, slot, 2, 3)
    bench.wait(60 * MS)
    assert bench.sent(slot) == [[1]], "until the long execution has ended"
    bench.finish(slot, took_ns=60 * MS)
    assert bench.sent(slot) == [[2]], "in order, and no series after a long one"


def test_what_is_given_back_goes_to_whoever_is_free() -> None:
    bench, first, second = shared()
    bench.finish(second, took_ns=10 * US)
    bench.finish(second, took_ns=10 * US)
    assert bench.batches[second] == []
    (waits,) = bench.sent(first)[1]
    given_back(bench, first, waits)
    assert bench.sent(second) == [[waits]]


def test_what_is_given_back_can_expire() -> None:
    bench, slot = primed(**parameters(queue_timeout_us=300_000))
    bench.ask(1, 2, 3)
    next_sent(bench, slot)
    given_back(bench, slot, 2, 3)
    bench.wait(299 * MS)
    assert not bench.answers[501, 2]
    bench.wait(1 * MS)
    assert bench.error(2)[0] == bench.error(3)[0] == Code.TIMEOUT


def test_what_was_cancelled_meanwhile_is_released_when_it_is_given_back() -> None:
    bench, slot = primed()
    bench.ask(1, 2, 3)
    next_sent(bench, slot)
    bench.cancel(2)
    assert bench.error(2)[0] == Code.CANCELLED
    given_back(bench, slot, 2, 3)
    bench.finish(slot, took_ns=2 * MS)
    assert bench.sent(slot) == [[3]]


def test_batches_nobody_knows_are_not_given_back() -> None:
    bench, slot = primed()
    bench.ask(1, 2)
    next_sent(bench, slot)
    bench.do(e.BatchesGivenBack(slot, (4711, bench.batches[slot][0].id)))
    assert bench.sent(slot) == [[1], [2]]
    bench.finish(slot)
    assert bench.is_answered(1)


# --- accounts ------------------------------------------------------------------------------------


def test_statistics_tell_of_single_executions() -> None:
    bench, slot = primed()
    bench.ask(1, 2)
    bench.finish(slot, took_ns=50 * US)
    for _ in range(2):
        bench.finish(slot, took_ns=50 * US)
    found = bench.control("statistics", model="m")["model_stats"][0]
    assert (found["inference_count"], found["execution_count"]) == (4, 4)
    (sized,) = found["batch_stats"]
    assert sized["batch_size"] == 1
    assert sized["compute_infer"] == {"count": 4, "ns": 200 * US}


@pytest.mark.parametrize("loss", ["given back", "death", "connection", "lost"])
def test_batches_are_counted_by_what_closed_them_when_they_are_executed(loss: str) -> None:
    """What comes back unexecuted is closed anew, and must not count twice."""
    bench, slot = primed()
    bench.ask(1, 2, 3)
    next_sent(bench, slot)
    sent = [batch.id for batch in bench.batches[slot][1:]]
    if loss == "given back":
        given_back(bench, slot, 2, 3)
    elif loss == "death":
        bench.dies(slot, executing=sent[0], begun=sent[0])
    elif loss == "connection":
        bench.wait(1 * MS)
        bench.batches[slot].clear()
        bench.do(e.SlotOpened(slot, bench.hello(slot, instance=bench.instance(slot).id), 1))
    else:
        bench.do(e.SlotSilent(slot, is_killed=True))
        bench.wait(Limits().kill_ns)
    if loss in ("death", "lost"):
        bench.loaded(slot := bench.worker())
    if loss == "lost":
        bench.ask(4)
    while bench.batches[slot]:
        bench.finish(slot, took_ns=50 * US)
    counted = bench.model().statistics
    expected = 3 if loss == "lost" else 5  # nothing that a LOST worker has is executed again
    assert sum(counted.batch_reasons.values()) == counted.execution_count == expected


def test_only_the_one_that_was_executed_at_a_death_is_suspect() -> None:
    bench, slot = primed()
    bench.ask(1, 2, 3)
    next_sent(bench, slot)
    executing = bench.batches[slot][1].id
    bench.dies(slot, executing=executing, begun=executing)
    again = bench.worker()
    bench.loaded(again)
    order = []
    while bench.batches[again]:
        order.append(bench.sent(again)[0])
        bench.finish(again, took_ns=50 * US)
    assert order[0] == [2], "the suspect first and alone"
    assert sorted(order[1:]) == [[1], [3]]
    assert all(bench.is_answered(ident) for ident in (1, 2, 3))


def test_one_long_execution_ends_the_series_for_a_while() -> None:
    prediction = Prediction()
    for _ in range(10):
        prediction.observe_each(20 * US)
    prediction.observe_each(10 * MS)
    assert prediction.series() == 1
    for _ in range(30):
        prediction.observe_each(20 * US)
    assert prediction.series() > 10

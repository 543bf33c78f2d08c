"""What counts as executed when its results died on the way, and what then may not run twice."""

from __future__ import annotations

import pytest

from naiad.broker.core import events as e
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, MS, Bench, batching, config, parameters


def test_a_batch_whose_results_were_lost_is_executed_again_but_not_suspect() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(4)))
    bench.ask(1, 2, rows=1)
    (batch,) = bench.batches[slot]
    bench.dies(slot, executing=0, begun=batch.id)
    assert bench.world.counters.reexecutions == {"worker_died": 2}
    slot = bench.worker()
    bench.loaded(slot)
    assert bench.sent(slot) == [[1, 2]]
    bench.finish(slot)
    assert bench.is_answered(1)
    assert bench.is_answered(2)


@pytest.mark.parametrize(("behind", "again"), [(0, 1), (1, 0)])
def test_a_batch_that_was_never_begun_is_not_counted(behind: int, again: int) -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    (batch,) = bench.batches[slot]
    bench.dies(slot, executing=0, begun=batch.id - behind)
    assert bench.world.counters.reexecutions["worker_died"] == again


def test_without_retry_a_request_whose_result_was_lost_fails() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(retry=False)))
    bench.ask(1)
    (batch,) = bench.batches[slot]
    bench.dies(slot, executing=0, begun=batch.id)
    assert bench.error(1)[0] == Code.WORKER_DIED


def test_without_retry_a_request_sent_again_fails_when_nobody_knows_it() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(retry=False)))
    bench.ask(1)
    bench.dies(slot)
    again = bench.restarted()
    again.ask(1, attempt=2)
    code, text = again.error(1)
    assert code == Code.CONNECTION_LOST
    assert "may not be run twice" in text


def test_the_death_of_a_worker_whose_execution_took_too_long_is_counted() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(execution_timeout_ms=50)))
    bench.ask(1)
    (batch,) = bench.batches[slot]
    bench.wait(60 * MS)
    assert bench.killed == [slot]
    bench.do(e.SlotDied(slot, "killed: it took too long", batch.id, True, (), batch.id))
    assert bench.world.counters.worker_deaths == {"killed: it took too long": 1}
    assert bench.world.counters.reexecutions == {"worker_died": 1}
    assert not bench.answers[CLIENT, 1]

"""Series of short executions before a fake broker: together if all is well, else nobody waits."""

from __future__ import annotations

import os
from typing import Any

from naiad.protocol import messages as m
from support.fake_worker_broker import IDENTITY_CONFIG, FakeWorkerBroker, fp32_request

PAYLOAD = [os.urandom(64)]
ALONE = {key: value for key, value in IDENTITY_CONFIG.items() if key != "dynamic_batching"}
LONG = {"sleep_ms": 1500}
DEAF = {"deaf_ms": 1500}


def loaded(broker: FakeWorkerBroker, start: Any, config: dict[str, Any] = ALONE) -> None:
    start()
    broker.welcome()
    assert broker.load(config).message.error is None


def requests(count: int, **long: dict[str, Any]) -> list[m.BatchRequest]:
    """`long` are the parameters of some, as r2={...}."""
    return [fp32_request(at, parameters=long.get(f"r{at}", {})) for at in range(1, count + 1)]


def batches(broker: FakeWorkerBroker, count: int) -> list[int]:
    """The batches of this many results, in the order they came."""
    found = []
    for _ in range(count):
        results, frames = broker.expect(m.Results)
        assert (results.results[0].error, frames) == (None, PAYLOAD)
        found.append(results.batch)
    return found


def test_each_is_answered_on_its_own_and_in_order(broker: FakeWorkerBroker, start: Any) -> None:
    loaded(broker, start)
    broker.send_series(requests(16), PAYLOAD)
    assert batches(broker, 16) == [*range(1, 17)]


def test_nobody_waits_for_a_long_execution(broker: FakeWorkerBroker, start: Any) -> None:
    loaded(broker, start)
    broker.send_series(requests(6, r3=LONG), PAYLOAD)
    assert batches(broker, 2) == [1, 2]
    given_back, _ = broker.expect(m.GivenBack)
    assert given_back.batches == (4, 5, 6)
    assert broker.hear(0.5) is None, "the third is still being executed"
    assert batches(broker, 1) == [3]
    broker.send_series(requests(2), PAYLOAD)
    assert batches(broker, 2) == [7, 8]


def test_the_first_may_be_the_long_one(broker: FakeWorkerBroker, start: Any) -> None:
    loaded(broker, start)
    broker.send_series(requests(3, r1=LONG), PAYLOAD)
    given_back, _ = broker.expect(m.GivenBack)
    assert given_back.batches == (2, 3)
    assert batches(broker, 1) == [1]


def test_what_comes_behind_a_long_execution_goes_back(broker: FakeWorkerBroker, start: Any) -> None:
    """The broker sent it when it still expected a short one."""
    loaded(broker, start)
    broker.send_batch(requests(1, r1=DEAF), PAYLOAD)
    assert broker.hear(0.1) is None
    broker.send_series(requests(3), PAYLOAD)
    given_back, _ = broker.expect(m.GivenBack)
    assert given_back.batches == (2, 3, 4)
    assert batches(broker, 1) == [1]
    broker.send_series(requests(2), PAYLOAD)
    assert batches(broker, 2) == [5, 6]


def test_other_messages_wait_for_the_end_of_a_long_execution(
    broker: FakeWorkerBroker, start: Any
) -> None:
    loaded(broker, start)
    broker.send_batch(requests(1, r1=DEAF), PAYLOAD)
    assert broker.hear(0.1) is None
    broker.send(m.Forget((77,)))
    broker.send(m.Return(((1, 99),)))
    broker.send_series(requests(2), PAYLOAD)
    given_back, _ = broker.expect(m.GivenBack)
    assert given_back.batches == (2, 3), "batches overtake them"
    assert batches(broker, 1) == [1]
    forgotten, _ = broker.expect(m.Forgotten)
    assert forgotten.ids == (77,)


def test_nothing_overtakes_the_order_to_stop(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.welcome()
    assert broker.load(ALONE).message.error is None
    broker.send_batch(requests(1, r1=DEAF), PAYLOAD)
    assert broker.hear(0.1) is None
    broker.send(m.Stop(30_000))
    broker.send_series(requests(2), PAYLOAD)
    assert broker.hear(0.3) is None, "neither a batch nor the order"
    assert batches(broker, 1) == [1]
    assert worker.exit_code() == 0


def test_what_is_given_back_is_not_held_any_more(broker: FakeWorkerBroker, start: Any) -> None:
    loaded(broker, start)
    broker.send_series(requests(3, r2=LONG), PAYLOAD)
    assert batches(broker, 1) == [1]
    broker.expect(m.GivenBack)
    broker.send(m.Abandon(((1, 3),)))
    assert batches(broker, 1) == [2]
    broker.send_batch([fp32_request(3)], PAYLOAD)
    assert batches(broker, 1) == [4], "the word about its first copy is forgotten"


def test_a_model_that_batches_keeps_its_batch_ahead(broker: FakeWorkerBroker, start: Any) -> None:
    loaded(broker, start, IDENTITY_CONFIG)
    broker.send_series(requests(2, r1={"sleep_ms": 300}), PAYLOAD)
    assert batches(broker, 2) == [1, 2]

"""Waiting has limits: deadlines that fire on time and queues that are full when they say so.

`sleep_ms` lets the echo hold its only instance; an early batch (sent to a worker shortly before the
running one is expected to end) still counts as queued.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, Code, Future, InferResult, NaiadError, RequestError, Unavailable
from naiad.testing.server import Server, serve
from support.models import add_echo, add_python
from support.models_python import python_model
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("unharmed")

HOLD_S = 30.0
"""Longer than any test: what still executes at its end is cancelled."""
TIMEOUT_S = 0.3
LATE_S_MAX = 0.05
"""Of the median; a machine with other things to do may delay single answers."""
TAUGHT = 10
BOUNDED = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
TIMED = f"""
dynamic_batching {{
  default_queue_policy {{
    default_timeout_microseconds: {round(TIMEOUT_S * 1e6)} allow_timeout_override: true
  }}
}}
"""
DELAYED = """
dynamic_batching {
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 700000 }
}
"""
SLEEPS = python_model("time.sleep(0.1)\nreturn [output(array_of(request)) for request in requests]")
ARRAYS = {"INPUT0": np.zeros((1, 16), np.float32)}

Futures = Sequence[Future[InferResult]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "timed", max_batch_size=1, extra=TIMED)
    add_echo(repository, "delayed", max_batch_size=1, extra=DELAYED)
    add_echo(repository, "bounded", max_batch_size=1, extra=BOUNDED)
    add_python(repository, "python", SLEEPS, max_batch_size=1, extra=BOUNDED)
    limits = {"naiad.max_queue_size": 2, "naiad.queue_timeout_us": round(TIMEOUT_S * 1e6)}
    add_echo(repository, "plain", max_batch_size=1, parameters=limits)
    with serve(repository, arguments=["--spares", "0"]) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """One per test: what a failing test leaves in a queue ends with it."""
    with Client(server.run_dir) as client:
        yield client


def hold(client: Client, model: str, seconds: float = HOLD_S) -> Future[InferResult]:
    """Occupy the model's only instance; returns once it executes."""
    wait_until(lambda: is_idle(client, model), f"{model} is idle")
    future = client.submit(model, ARRAYS, parameters={"sleep_ms": seconds * 1e3})
    wait_until(lambda: row_of(client, model)["executing"] == 1, f"{model} executes")
    return future


def row_of(client: Client, model: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = client.status()["models"]
    (row,) = [row for row in rows if row["name"] == model]
    return row


def is_idle(client: Client, model: str) -> bool:
    row = row_of(client, model)
    return bool(row["queued"] == row["executing"] == 0)


def fault_of(future: Future[InferResult], seconds: float = 20) -> NaiadError | None:
    try:
        future.result(timeout=seconds)
    except NaiadError as fault:
        return fault
    return None


def codes(futures: Futures) -> list[Code | None]:
    return [fault.code if (fault := fault_of(future)) else None for future in futures]


def teach(client: Client, model: str, sleep_ms: float) -> None:
    """Make the server expect that an execution takes so long, so that early batches are sent."""
    for _ in range(TAUGHT):
        client.infer(model, ARRAYS, parameters={"sleep_ms": sleep_ms})


def early_batch(client: Client, model: str) -> tuple[Future[InferResult], Future[InferResult]]:
    """A request that executes far longer than expected, and one sent to its worker early."""
    teach(client, model, 10)
    before = client.status()["counters"]["early_batches"]
    running = hold(client, model)
    waiting = client.submit(model, ARRAYS)
    wait_until(
        lambda: client.status()["counters"]["early_batches"] > before, "an early batch is sent"
    )
    assert not running.done()
    return running, waiting


@pytest.mark.parametrize("model", ["timed", "plain"])
def test_a_queue_timeout_fires_on_time_behind_a_long_execution(client: Client, model: str) -> None:
    running = hold(client, model)
    late_s = []
    for _ in range(2):
        asked = time.monotonic()
        waiting = [client.submit(model, ARRAYS) for _ in range(2)]
        for future in waiting:
            fault = fault_of(future)
            late_s.append(time.monotonic() - asked - TIMEOUT_S)
            assert isinstance(fault, Unavailable)
            assert fault.code == Code.TIMEOUT
            assert "Request timeout expired" in fault.message
    assert not running.done(), "nothing was shown: the execution was over before"
    assert min(late_s) >= 0
    assert median(late_s) < LATE_S_MAX


def test_a_shorter_timeout_of_the_request_counts_and_a_longer_does_not(client: Client) -> None:
    running = hold(client, "timed")
    asked = time.monotonic()
    shorter = client.submit("timed", ARRAYS, timeout_us=50_000)
    longer = client.submit("timed", ARRAYS, timeout_us=60_000_000)
    assert codes([shorter]) == [Code.TIMEOUT]
    assert 0.05 <= time.monotonic() - asked < TIMEOUT_S
    assert codes([longer]) == [Code.TIMEOUT]
    assert not running.done()


def test_a_request_in_an_early_batch_still_times_out(client: Client) -> None:
    running, waiting = early_batch(client, "timed")
    assert codes([waiting]) == [Code.TIMEOUT]
    assert not running.done()


def test_a_request_in_an_early_batch_can_be_cancelled_and_is_not_run(client: Client) -> None:
    (before,) = client.statistics("bounded")["model_stats"]
    running, waiting = early_batch(client, "bounded")
    assert waiting.cancel()
    wait_until(lambda: row_of(client, "bounded")["queued"] == 0, "the cancel arrived")
    running.cancel()
    client.infer("bounded", ARRAYS)
    (after,) = client.statistics("bounded")["model_stats"]
    assert after["inference_count"] - before["inference_count"] == TAUGHT + 1


def test_a_delay_policy_answers_late_and_after_those_in_time(client: Client) -> None:
    running = hold(client, "delayed", 1.2)
    order: list[str] = []
    early = client.submit("delayed", ARRAYS, callback=lambda _: order.append("overdue"))
    wait_until(lambda: not running.done() and _is_delayed(client), "it is overdue", 5)
    late = client.submit("delayed", ARRAYS, callback=lambda _: order.append("in time"))
    assert codes([running, early, late]) == [None, None, None]
    assert order == ["in time", "overdue"]


def _is_delayed(client: Client) -> bool:
    return bool(row_of(client, "delayed")["oldest_pending_s"] > 0.75)


@pytest.mark.parametrize("model", ["bounded", "plain", "python"])
def test_a_burst_is_taken_up_to_the_instance_and_the_queue_and_no_further(
    client: Client, model: str
) -> None:
    answered: list[float] = []
    asked = time.monotonic()
    burst = [
        client.submit(
            model,
            ARRAYS,
            callback=lambda _: answered.append(time.monotonic()),
            parameters={"sleep_ms": 100},
        )
        for _ in range(10)
    ]
    found = codes(burst)
    assert found == [None] * 3 + [Code.QUEUE_FULL] * 7
    refusals = [fault for future in burst[3:] if (fault := fault_of(future))]
    assert all("Exceeds maximum queue size: 2" in fault.message for fault in refusals)
    assert all(fault.retryable for fault in refusals)
    assert sorted(answered)[6] - asked < 0.1, "the refused were told before anything had run"


def test_an_early_batch_counts_as_queued(client: Client) -> None:
    running, waiting = early_batch(client, "bounded")
    assert row_of(client, "bounded")["queued"] == 1
    second = client.submit("bounded", ARRAYS)
    third = client.submit("bounded", ARRAYS)
    assert codes([third]) == [Code.QUEUE_FULL]
    assert not running.done()
    assert row_of(client, "bounded")["queued"] == 2
    running.cancel()
    assert codes([waiting, second]) == [None, None]


def test_the_queue_has_room_again_when_its_requests_are_gone(client: Client) -> None:
    running = hold(client, "bounded")
    waiting = [client.submit("bounded", ARRAYS) for _ in range(3)]
    assert codes(waiting[2:]) == [Code.QUEUE_FULL]
    assert waiting[0].cancel()
    wait_until(lambda: row_of(client, "bounded")["queued"] == 1, "the cancel arrived")
    another = client.submit("bounded", ARRAYS)
    running.cancel()
    assert codes([waiting[1], another]) == [None, None]


def test_refused_requests_count_as_failed(client: Client) -> None:
    (before,) = client.statistics("bounded")["model_stats"]
    hold(client, "bounded")
    futures = [client.submit("bounded", ARRAYS) for _ in range(4)]
    assert codes(futures[2:]) == [Code.QUEUE_FULL] * 2
    (after,) = client.statistics("bounded")["model_stats"]
    failures = [stats["inference_stats"]["fail"]["count"] for stats in (before, after)]
    assert failures[1] - failures[0] == 2


def test_a_deadline_beyond_all_time_is_refused(client: Client) -> None:
    with pytest.raises(RequestError, match="timeout_us"):
        client.infer("timed", ARRAYS, timeout_us=2**63)

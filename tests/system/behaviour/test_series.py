"""Models without batching whose executions are short, until one is long: who waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from naiad.client import Client, Code, Future, InferResult, NaiadError
from naiad.testing.server import Server, serve
from support.models import add_echo

ARRAYS = {"INPUT0": np.zeros(16, np.float32)}
LONG_MS = 2000
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_echo(repository, "one")
    add_echo(repository, "two", instances=2)
    add_echo(repository, "hasty", parameters={"naiad.queue_timeout_us": 300_000})
    with serve(repository) as server:
        yield server


def burst(client: Client, model: str, count: int, long: int) -> dict[int, Future[InferResult]]:
    """Many requests at once, one of them long, to a model that is known to be quick."""
    for _ in range(60):
        client.infer(model, ARRAYS)
    return {
        at: client.submit(
            model, ARRAYS, label=str(at), parameters={"sleep_ms": LONG_MS} if at == long else {}
        )
        for at in range(count)
    }


def test_what_was_executed_before_is_answered_meanwhile(client: Client) -> None:
    begun_s = time.monotonic()
    futures = burst(client, "one", 40, long=25)
    for at in range(25):
        futures[at].result(PATIENCE_S)
        assert not futures[25].done(), at
    for future in futures.values():
        future.result(PATIENCE_S)
    assert time.monotonic() - begun_s >= LONG_MS / 1e3


def test_another_instance_takes_what_waits_behind(client: Client) -> None:
    futures = burst(client, "two", 40, long=10)
    for at, future in futures.items():
        if at != 10:
            future.result(PATIENCE_S)
            assert not futures[10].done(), at
    futures[10].result(PATIENCE_S)


def test_what_waits_behind_expires_in_time(client: Client) -> None:
    futures = burst(client, "hasty", 12, long=0)
    for at in range(1, 12):
        with pytest.raises(NaiadError) as caught:
            futures[at].result(PATIENCE_S)
        assert caught.value.code == Code.TIMEOUT
        assert not futures[0].done(), "as soon as its time is over"
    futures[0].result(PATIENCE_S)


def test_what_waits_behind_can_be_cancelled(server: Server, client: Client) -> None:
    before = client.statistics("one")["model_stats"][0]["execution_count"]
    futures = burst(client, "one", 12, long=0)
    for at in range(1, 12):
        assert futures[at].cancel()
    futures[0].result(PATIENCE_S)
    client.infer("one", ARRAYS)
    after = client.statistics("one")["model_stats"][0]["execution_count"]
    assert after - before == 60 + 2, "nobody executes what was cancelled while it waited"

"""Ready is what serves: a model with an instance that can take work, a server with all its models.

A model whose last worker died is not ready from that moment; its requests wait for the next one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, Code, NaiadError, Unavailable
from naiad.testing.server import Server, serve
from support.models import add_echo, add_python
from support.models_python import ECHO, HANGS_IN_INITIALIZE
from support.waiting import wait_until

ARRAYS = {"INPUT0": np.arange(16, dtype=np.float32)}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "single")
    add_echo(repository, "pair", instances=2)
    add_python(repository, "slow_to_load", HANGS_IN_INITIALIZE)
    add_python(repository, "python_pair", ECHO, instances=2)
    add_echo(repository, "broken", parameters={"fail_load": "out of luck"})
    add_echo(repository, "doomed", parameters={"naiad.crash_budget": 2})
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with serve(repository, arguments=["--control-mode", "explicit"]) as server:
        yield server


def instances(client: Client, model: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.status()["instances"]
    return [row for row in rows if row["model"] == model]


def kill_one(client: Client, model: str) -> None:
    """SIGKILL one worker of the model; returns once the broker knows."""
    row = instances(client, model)[0]
    os.kill(row["pid"], signal.SIGKILL)
    wait_until(
        lambda: row["pid"] not in {one["pid"] for one in instances(client, model)},
        "the death is known",
    )


def test_a_model_is_ready_while_it_executes(client: Client) -> None:
    client.load("single")
    running = client.submit("single", ARRAYS, parameters={"sleep_ms": 30_000})
    wait_until(lambda: instances(client, "single")[0]["state"] == "BUSY", "it executes")
    assert client.model_ready("single")
    assert client.ready()
    running.cancel()


def test_with_its_only_worker_dead_a_model_is_not_ready_and_its_requests_wait(
    client: Client, repository: Path
) -> None:
    hang = repository / "slow_to_load.hang"
    client.load("slow_to_load")
    assert client.model_ready("slow_to_load")
    hang.touch()
    kill_one(client, "slow_to_load")
    assert not client.model_ready("slow_to_load")
    assert not client.ready()
    waiting = [client.submit("slow_to_load", ARRAYS) for _ in range(3)]
    (row,) = [row for row in client.index() if row["name"] == "slow_to_load"]
    assert row["state"] == "READY", "the version is still served"
    assert not any(future.done() for future in waiting)
    hang.unlink()
    for future in waiting:
        assert (future.result(timeout=20)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    assert client.model_ready("slow_to_load")
    assert client.ready()
    client.unload("slow_to_load")


def test_a_model_is_ready_while_one_of_its_workers_is(client: Client) -> None:
    client.load("pair")
    kill_one(client, "pair")
    assert client.model_ready("pair")
    assert (client.infer("pair", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    wait_until(
        lambda: [row["state"] for row in instances(client, "pair")] == ["READY"] * 2,
        "the other one was replaced",
    )


def test_a_replacement_that_does_not_load_takes_no_healthy_instance_with_it(
    client: Client, repository: Path
) -> None:
    client.load("python_pair")
    path = repository / "python_pair" / "1" / "model.py"
    path.write_text("def broken(:\n")
    kill_one(client, "python_pair")
    wait_until(
        lambda: (
            any(row["state"] in ("FATAL", "BACKOFF") for row in instances(client, "python_pair"))
            or not client.model_ready("python_pair")
        ),
        "the replacement failed to load",
    )
    assert client.model_ready("python_pair")
    assert (client.infer("python_pair", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    path.write_text(ECHO)
    client.load("python_pair")
    assert [row["state"] for row in instances(client, "python_pair")].count("READY") >= 2
    client.unload("python_pair")


def test_a_model_that_did_not_load_keeps_the_server_from_ready_until_it_is_let_go(
    client: Client,
) -> None:
    assert client.ready()
    with pytest.raises(NaiadError, match="out of luck"):
        client.load("broken")
    assert not client.model_ready("broken")
    assert not client.ready()
    with pytest.raises(NaiadError, match=r"'broken' has no available versions.*out of luck"):
        client.infer("broken", ARRAYS)
    client.unload("broken")
    assert client.ready()
    client.load("single")
    client.unload("single")
    assert client.ready(), "what is unloaded on purpose is not missed"
    assert not client.model_ready("single")


def test_a_model_that_crashes_in_a_row_is_unavailable_with_the_reason_and_is_tried_again(
    client: Client,
) -> None:
    client.load("doomed")
    for _ in range(2):
        wait_until(lambda: client.model_ready("doomed"), "it serves")
        kill_one(client, "doomed")
    (row,) = [row for row in client.index() if row["name"] == "doomed"]
    assert row["state"] == "UNAVAILABLE"
    assert "its worker died 2 times in a row, last: SIGKILL" in row["reason"]
    with pytest.raises(NaiadError, match="SIGKILL"):
        client.infer("doomed", ARRAYS)
    (shown,) = [row for row in client.status()["models"] if row["name"] == "doomed"]
    assert 0 < shown["next_retry_s"] < 2
    wait_until(lambda: client.model_ready("doomed"), "it was tried again by itself")
    assert (client.infer("doomed", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    client.unload("doomed")


def test_a_version_that_loads_is_told_apart_from_one_that_is_not_there(
    client: Client, repository: Path
) -> None:
    hang = repository / "loading.hang"
    hang.touch()
    add_python(repository, "loading", HANGS_IN_INITIALIZE)
    future = client.submit("loading", ARRAYS)
    with pytest.raises(NaiadError) as unknown:
        future.result(timeout=20)
    assert unknown.value.code == Code.NOT_FOUND
    assert not unknown.value.retryable
    call = threading.Thread(target=client.load, args=("loading",))
    call.start()
    wait_until(
        lambda: any(row.get("state") == "LOADING" for row in client.index()), "it is loading"
    )
    with pytest.raises(Unavailable, match="version 1 is not at ready state") as caught:
        client.infer("loading", ARRAYS, version=1)
    assert caught.value.retryable
    with pytest.raises(NaiadError, match="version 2 is not found"):
        client.infer("loading", ARRAYS, version=2)
    hang.unlink()
    call.join(20)
    assert client.model_ready("loading", 1)
    assert not client.model_ready("loading", 2)
    client.unload("loading")

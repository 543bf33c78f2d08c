"""What reading the model repository takes is no request's affair, and it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import psutil
import pytest

from naiad.client import Client, Unavailable
from naiad.testing.server import Server, serve
from support.helper_process import helper_pids
from support.models import add_echo
from support.waiting import wait_until

ARRAYS = {"INPUT0": np.arange(16, dtype=np.float32)}
PIPE_BYTES = 65_536
PAUSE_SECONDS = 0.05
LIMIT_SECONDS = 10.0
"""A helper starts in 0.2 s, but machines that run tests are busy."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo")
    add_echo(repository, "other")
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    explicit = ["--control-mode", "explicit", "--load-model", "echo"]
    limit = ["--scan-timeout-seconds", f"{LIMIT_SECONDS:g}"]
    with serve(repository, arguments=[*explicit, *limit]) as server:
        yield server


def test_a_configuration_larger_than_a_pipe_reaches_the_helper(client: Client) -> None:
    tensor = {"data_type": "TYPE_FP32", "dims": [16]}
    config = {
        "backend": "identity",
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor}],
    }
    client.load("other", json.dumps(config) + " " * (14 * PIPE_BYTES))
    assert (client.infer("other", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    client.unload("other")


@pytest.mark.usefixtures("unharmed")
def test_a_helper_that_hangs_fails_one_load_at_the_limit_and_nothing_else(
    client: Client, server: Server
) -> None:
    broker = server.pids["broker"]
    wait_until(lambda: not helper_pids(broker), "an idle helper has ended")
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(client.load, "other")
        hung = stopped_helper(broker)
        while not wait([lost], PAUSE_SECONDS).done:
            answer = client.submit("echo", ARRAYS).result(timeout=2)
            assert (answer["OUTPUT0"] == ARRAYS["INPUT0"]).all()
        with pytest.raises(Unavailable, match=r"within 10 s \(--scan-timeout-seconds\)"):
            lost.result()
    wait_until(lambda: not hung.is_running(), "the helper that hung is killed")
    client.load("other")
    assert (client.infer("other", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()


def stopped_helper(broker: int) -> psutil.Process:
    """The broker's helper, stopped as soon as there is one: long before it can answer."""
    wait_until(lambda: helper_pids(broker), "the broker starts a helper")
    (pid,) = helper_pids(broker)
    process = psutil.Process(pid)
    process.suspend()
    return process

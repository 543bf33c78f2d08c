"""What a broker has told somebody outlives it: the state is on disk before the answer leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from naiad.client import Client
from naiad.testing.server import Server, serve
from support.models import add_echo
from support.planted import planted

SLOW_DISK = """
import sys, time

if "naiad.broker" in sys.orig_argv:
    from naiad.broker.state import StateFile

    save = StateFile.save

    def slow(self, snapshot):
        time.sleep(0.5)
        save(self, snapshot)

    StateFile.save = slow
"""
ARRAYS = {"INPUT0": np.zeros(16, np.float32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_echo(repository, "echo")
    environment = planted(tmp_path_factory.mktemp("planted"), SLOW_DISK)
    with serve(
        repository, environment=environment, arguments=["--control-mode", "explicit"]
    ) as server:
        yield server


def test_a_model_that_was_loaded_serves_after_the_broker_died(
    server: Server, client: Client
) -> None:
    client.load("echo")
    os.kill(server.pids["broker"], signal.SIGKILL)
    with server.client() as another:
        another.infer("echo", ARRAYS)


def test_a_model_that_was_unloaded_stays_so(server: Server, client: Client) -> None:
    client.load("echo")
    client.unload("echo")
    os.kill(server.pids["broker"], signal.SIGKILL)
    with server.client() as another:
        assert not another.model_ready("echo")

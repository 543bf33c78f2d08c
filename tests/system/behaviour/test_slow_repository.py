"""What reading the model repository takes is no request's affair, and it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client
from naiad.testing.server import Server, serve
from support.models import add_echo

ARRAYS = {"INPUT0": np.arange(16, dtype=np.float32)}
PIPE_BYTES = 65_536


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo")
    add_echo(repository, "other")
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    explicit = ["--control-mode", "explicit", "--load-model", "echo"]
    with serve(repository, arguments=explicit) as server:
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

"""Stock tritonclient.grpc against a real naiad server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc as triton

from naiad.testing.server import Server, serve
from support.grpc_listener import Listener
from support.grpc_models import DATATYPES
from support.models import add_echo, add_onnx_adder

EXPLICIT = [
    "--control-mode", "explicit", "--load-model", "*", "--spares", "0"
]  # fmt: skip


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for datatype in DATATYPES:
        add_echo(repository, f"echo_{datatype.lower()}", f"{datatype} -1")
    add_echo(repository, "batched", "FP32 4", max_batch_size=8)
    add_onnx_adder(repository, "adder")
    with serve(repository, arguments=EXPLICIT) as server:
        yield server


@pytest.fixture(scope="session")
def listener(server: Server) -> Iterator[Listener]:
    with Listener(server.run_dir) as listener:
        yield listener


@pytest.fixture
def client(listener: Listener) -> Iterator[Any]:
    with triton.InferenceServerClient(listener.target) as client:
        yield client

"""Stock tritonclient.grpc against a real naiad server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton

from naiad.testing.server import Server, serve
from support.grpc_models import DATATYPES
from support.models import add_echo, add_onnx_adder

PATIENCE_S = 20
UnderWay = Callable[[], int]
ARGUMENTS = [
    "--control-mode", "explicit", "--load-model", "*", "--spares", "0", "--grpc-port", "0"
]  # fmt: skip


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for datatype in DATATYPES:
        add_echo(repository, f"echo_{datatype.lower()}", f"{datatype} -1")
    add_echo(repository, "batched", "FP32 4", max_batch_size=8)
    add_onnx_adder(repository, "adder")
    with serve(repository, arguments=ARGUMENTS) as server:
        yield server


@pytest.fixture(scope="session")
def target(server: Server) -> str:
    """Where the server's gateway listens, once it does."""
    with grpc.insecure_channel(server.grpc_target) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE_S)
    return server.grpc_target


@pytest.fixture
def client(target: str) -> Iterator[Any]:
    with triton.InferenceServerClient(target) as client:
        yield client


@pytest.fixture
def under_way(server: Server) -> Iterator[UnderWay]:
    """How many requests the server has not answered, over all models."""
    with server.client() as native:

        def count() -> int:
            models = native.status()["models"]
            return sum(int(model["queued"] + model["executing"]) for model in models)

        yield count

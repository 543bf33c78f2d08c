"""The gRPC listener before a real server with an echo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from naiad.testing.server import Server, serve
from support.models import add_echo


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo_fp32", "FP32 -1")
    with serve(repository, arguments=["--control-mode", "explicit", "--load-model", "*"]) as server:
        yield server

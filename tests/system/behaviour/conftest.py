"""What the tests of behaviour share. Each module has a fixture `server` with models of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from naiad.client import Client
from naiad.testing.server import Server


@pytest.fixture(scope="module")
def client(server: Server) -> Client:
    """A client of the module's server."""
    return server.client()


@pytest.fixture
def unharmed(server: Server, client: Client) -> Iterator[None]:
    """The broker and every worker outlive the test."""
    broker = server.pids["broker"]
    deaths = client.status()["counters"]["worker_deaths"]
    yield
    assert server.pids["broker"] == broker
    assert client.status()["counters"]["worker_deaths"] == deaths

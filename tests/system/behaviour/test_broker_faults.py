"""Faults inside the broker, planted into its process as it starts: what fails, and what goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from naiad.client import AsyncClient, Client, Code, InternalError, RequestError
from naiad.client.calls import BROKER_DEATHS_MAX
from naiad.testing.server import Server, serve
from support.models import add_echo
from support.planted import planted

PLANTED = """
import os, sys

if "naiad.broker" in sys.orig_argv:
    from naiad.broker.core.admission import Admission
    from naiad.broker.core.queries import Queries

    def broken(*_):
        raise ZeroDivisionError("planted")

    Queries.statistics = broken
    Queries.model_config = lambda *_: {"not": {"as": object()}}
    Queries.class_labels = lambda *_: os._exit(9)  # nothing can stop this one from killing

    prepare = Admission.prepare

    def deadly(self, session, request, frames):
        if request.label == "broken":
            broken()
        if request.label == "deadly":
            os._exit(9)
        return prepare(self, session, request, frames)

    Admission.prepare = deadly
"""
ARRAYS = {"INPUT0": np.zeros(16, np.float32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    add_echo(repository, "echo")
    environment = planted(tmp_path_factory.mktemp("planted"), PLANTED)
    with serve(repository, environment=environment) as server:
        yield server


def test_a_call_or_request_that_meets_a_fault_fails_alone(server: Server, client: Client) -> None:
    broker = server.pids["broker"]
    with pytest.raises(InternalError, match="the call statistics failed"):
        client.statistics()
    with pytest.raises(InternalError, match="writing the reply to a call failed"):
        client.config("echo")
    with pytest.raises(InternalError, match="the admission of this request failed"):
        client.infer("echo", ARRAYS, label="broken")
    client.infer("echo", ARRAYS)
    assert client.status()["counters"]["internal_faults"] == 3
    assert server.pids["broker"] == broker
    assert "the call statistics failed by a fault of the broker" in server.log
    assert "ZeroDivisionError: planted" in server.log
    assert "in broken" in server.log


def test_what_kills_brokers_is_sent_to_few_and_the_server_lives(
    server: Server, client: Client
) -> None:
    async def ask() -> tuple[object, object]:
        async with AsyncClient(server.run_dir) as asking:
            deadly = asking.infer("echo", ARRAYS, label="deadly")
            return await asyncio.gather(deadly, asking.class_labels("echo"), return_exceptions=True)

    for fault in asyncio.run(ask()):
        assert isinstance(fault, RequestError)
        assert fault.code is Code.POISON_REQUEST
        assert f"died {BROKER_DEATHS_MAX} times" in fault.message
    assert server.log.count("restarting it") == BROKER_DEATHS_MAX
    client.infer("echo", ARRAYS)

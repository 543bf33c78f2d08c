"""One body for every client: blocking, asyncio and uvloop, against a broker in a real process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from support.clients import AsyncCaller, BlockingCaller, Broker, Caller, Connect


@pytest.fixture
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")  # shorter than tmp_path: sockets have short names


@pytest.fixture
def broker(run_dir: Path) -> Iterator[Broker]:
    started = Broker(run_dir).start()
    yield started
    started.stop()


@pytest.fixture(params=["blocking", "asyncio", "uvloop"])
def connect(request: pytest.FixtureRequest, run_dir: Path) -> Iterator[Connect]:
    """Makes clients, of one kind in each test, and checks and closes them at its end."""
    kind = request.param
    loop = {"blocking": None, "asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[
        kind
    ]
    running = loop() if loop is not None else None
    made: list[Caller] = []

    def connected(**options: Any) -> Caller:
        caller: Caller
        if running is None:
            caller = BlockingCaller(run_dir, **options)
        else:
            caller = AsyncCaller(running, run_dir, **options)
        made.append(caller)
        return caller

    yield connected
    for caller in made:
        caller.session.requests.check_invariants()
        caller.close()
    if running is not None:
        running.close()

"""Work whose task is cancelled before its first step has not begun, and is not left half made."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.gateway.grpc_many_requests import ManyRequestsCall
from naiad.gateway.http_infer import replied

pytestmark = pytest.mark.filterwarnings("error")


class Begun(Exception):
    pass


async def work(*_: object) -> Any:
    raise Begun


async def cancelled_at_once(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()


def test_an_answer_over_http() -> None:
    async def go() -> None:
        connection: Any = None
        await cancelled_at_once(asyncio.create_task(replied(connection, work)))

    asyncio.run(go())


def test_a_call_over_grpc() -> None:
    async def go() -> None:
        call = ManyRequestsCall.__new__(ManyRequestsCall)
        call._loop = asyncio.get_running_loop()
        door: Any = SimpleNamespace(owes=lambda: None)
        call._door = door
        call.start(work)
        assert call._task is not None
        await cancelled_at_once(call._task)

    asyncio.run(go())

"""A call whose caller's deadline the queue saw before the call's own timer did, in both loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from naiad.gateway.grpc_call import DEADLINE_SLACK_SECONDS, Asked
from naiad.gateway.grpc_codec.head import Head, error_end, fault_end
from naiad.gateway.grpc_codec.status import Status
from naiad.gateway.grpc_many_requests import ManyRequestsCall
from naiad.gateway.grpc_method import Method
from naiad.gateway.grpc_service import Caller
from naiad.gateway.limits import Limits
from naiad.protocol.errors import Code, Unavailable

TIMEOUT = Unavailable("waited too long in the queue", code=Code.TIMEOUT)
EXPIRED = fault_end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded", is_all=True)


class Door:
    """A connection that keeps the ends of its calls; its own plane, budget and HTTP/2."""

    def __init__(self) -> None:
        self.plane = self.http2 = self.budget = self
        self.limits = Limits()
        self.ends: list[bytes] = []

    def send_end(self, stream: int, block: bytes) -> None:
        self.ends.append(block)

    def send_soon(self) -> None:
        pass

    def give(self, size: int) -> None:
        assert size == 0

    def is_over(self, call: object) -> None:
        pass

    def owes(self) -> None:
        pass


async def ends_of(timeout_seconds: float | None) -> list[bytes]:
    door: Any = Door()
    head = Head(b"/s/m", timeout_seconds=timeout_seconds)
    asked = Asked(1, head, Caller(False, False), Method("m", 1000))
    call = ManyRequestsCall(door, asked)
    call.fail(TIMEOUT)
    await asyncio.sleep(0)
    ends: list[bytes] = door.ends
    return ends


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-4, 1e-3, DEADLINE_SLACK_SECONDS / 2])
def test_a_timeout_at_the_deadline_is_the_deadline(factory: Any, seconds: float) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(ends_of(seconds)) == [EXPIRED]


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("seconds", [None, 60.0])
def test_another_timeout_is_told_as_it_is(factory: Any, seconds: float | None) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(ends_of(seconds)) == [error_end(TIMEOUT, is_all=True)]

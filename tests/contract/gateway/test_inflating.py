"""Compressed bodies over HTTP: what they become is counted, and forgotten with the request."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import weakref
from dataclasses import replace
from typing import Any, cast

from naiad.client.aio import AsyncClient
from naiad.gateway.calls import InferAnswer, InferCall
from naiad.gateway.http_infer import Inference
from naiad.gateway.http_message import Head, HttpRequest, Response
from naiad.gateway.http_routes import Route
from naiad.gateway.limits import MIB, Limits
from naiad.gateway.pending import Done, Order, Pending
from naiad.gateway.plane import Plane
from naiad.protocol.errors import ModelError

DEADLINE_S = 10.0
BUDGET_BYTES = 4 * MIB
ROUTE = Route("infer", "m")


class EndingPlane(Plane):
    """Ends every call at once; with an error if there is a text for one."""

    def __init__(self, fault: str = "") -> None:
        limits = replace(Limits(), bytes_in_flight_max=BUDGET_BYTES)
        super().__init__(cast("AsyncClient", None), limits)
        self._fault = fault
        self.bytes_seen: list[int] = []
        self.bodies: list[weakref.ref[memoryview]] = []

    def start(self, call: InferCall, done: Done, order: Order | None = None) -> Pending:
        self.bytes_seen.append(self.budget.bytes)
        self.bodies.append(weakref.ref(cast("memoryview", call.inputs[0].data)))
        pending = Pending(
            cast("AsyncClient", None), self._lookups, self.long_work, call, done, lambda: None
        )
        loop = asyncio.get_running_loop()
        if self._fault:
            loop.call_soon(pending.set_exception, ModelError(self._fault))
        else:
            loop.call_soon(pending._end, InferAnswer("m", 1, "", (), {}))
        return pending


class Connection:
    is_local = True

    def __init__(self) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def reply(self, response: Response) -> None:
        self.response.set_result(response)


def request(size: int) -> HttpRequest:
    parameters = {"binary_data_size": size}
    tensor = {"name": "x", "datatype": "UINT8", "shape": [size], "parameters": parameters}
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {
        b"content-encoding": b"gzip",
        b"inference-header-content-length": b"%d" % len(text),
    }
    head = Head("POST", b"/v2/models/m/infer", headers, keeps_alive=True)
    return HttpRequest(head, gzip.compress(text + bytes(size)))


async def answered(plane: Plane, size: int) -> Response:
    inference = Inference(plane, lambda is_local: True)
    given = request(size)
    connection: Any = Connection()
    inference.begin(inference.plan(ROUTE, given.head), given, connection)
    return await asyncio.wait_for(connection.response, DEADLINE_S)


def test_what_is_decompressed_is_in_the_budget() -> None:
    async def scenario() -> None:
        plane = EndingPlane()
        assert (await answered(plane, 3 * MIB)).status == 200
        assert plane.bytes_seen[0] >= 3 * MIB
        assert plane.budget.bytes == 0
        refused = await answered(plane, 5 * MIB)
        assert refused.status == 429
        assert b"at most 4194304" in bytes(refused.parts[0])
        assert len(plane.bytes_seen) == 1
        assert plane.budget.bytes == 0

    asyncio.run(scenario())


def test_a_request_that_failed_leaves_nothing_to_the_garbage_collector() -> None:
    """It would come minutes later: so long the memory of the largest requests would stay."""

    async def scenario() -> None:
        plane = EndingPlane("no luck")
        for _ in range(3):
            assert (await answered(plane, MIB)).status == 500
            await asyncio.sleep(0)
        assert [body() for body in plane.bodies] == [None] * 3

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()

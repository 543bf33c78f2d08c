"""Requests whose whole body is one tensor, also where that has nothing in it."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any, cast

import pytest

from naiad.client.aio import AsyncClient
from naiad.gateway.calls import CallInput, InferAnswer, InferCall
from naiad.gateway.http_infer import Inference
from naiad.gateway.http_message import Head, HttpRequest, Response
from naiad.gateway.http_routes import Route
from naiad.gateway.limits import Limits
from naiad.gateway.pending import Order
from naiad.gateway.plane import Plane

DEADLINE_S = 10.0
ROUTE = Route("infer", "m")


class Client:
    async def config(self, model: str, version: int) -> dict[str, Any]:
        return {"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1"]}]}


class KeepingPlane(Plane):
    def __init__(self) -> None:
        super().__init__(cast("AsyncClient", Client()), Limits())
        self.asked: list[InferCall] = []

    async def infer(self, call: InferCall, order: Order | None = None) -> InferAnswer:
        self.asked.append(call)
        return InferAnswer("m", 1, "", (), {})


class Connection:
    is_local = True

    def __init__(self) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def reply(self, response: Response) -> None:
        self.response.set_result(response)


def asked(
    headers: dict[bytes, bytes], body: bytes, forward: str = ""
) -> tuple[Response, list[InferCall]]:
    async def scenario() -> Response:
        inference = Inference(plane, lambda is_local: True, forward)
        names = {name: name for name in headers}
        head = Head("POST", b"/v2/models/m/infer", headers, keeps_alive=True, names=names)
        request = HttpRequest(head, body)
        connection: Any = Connection()
        inference.begin(inference.plan(ROUTE, request.head), request, connection)
        return await asyncio.wait_for(connection.response, DEADLINE_S)

    plane = KeepingPlane()
    return asyncio.run(scenario()), plane.asked


LENGTH = b"inference-header-content-length"
GZIP = {b"content-encoding": b"gzip"}


@pytest.mark.parametrize(
    ("headers", "body", "count"),
    [
        ({LENGTH: b"0"}, bytes(12), 3),
        ({LENGTH: b"00"}, bytes(8), 2),
        ({LENGTH: b"0"}, b"", 0),
        ({}, b"", 0),
        (GZIP, gzip.compress(b""), 0),
        ({LENGTH: b"0", **GZIP}, gzip.compress(bytes(4)), 1),
    ],
    ids=["raw", "two zeros", "raw and empty", "empty", "compressed empty", "compressed"],
)
def test_a_raw_tensor(headers: dict[bytes, bytes], body: bytes, count: int) -> None:
    response, calls = asked(headers, body)
    assert response.status == 200
    (call,) = calls
    assert call.is_binary_by_default
    assert call.inputs == (CallInput("x", "FP32", (count,), bytes(4 * count)),)


def test_headers_are_forwarded_with_a_raw_tensor() -> None:
    _, (call,) = asked({LENGTH: b"0", b"x-tea": b"green"}, bytes(4), "^x-")
    assert call.parameters == {"x-tea": "green"}


@pytest.mark.parametrize("header", [b"", b"-0", b"0x"])
def test_a_header_that_is_no_number(header: bytes) -> None:
    response, calls = asked({LENGTH: header}, bytes(4))
    assert response.status == 400
    assert not calls

"""What a call becomes for the client library; refused in the words of HTTP and gRPC. And again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from naiad.client.requests import INLINE, REGION, InferInput, Prepared
from naiad.gateway.calls import ArenaPart, CallInput, InferCall, RegionPart
from naiad.gateway.client_form import prepared
from naiad.gateway.long_work import LongWork
from naiad.gateway.lookups import Lookups
from naiad.gateway.pending import Pending
from naiad.protocol.checks import NAME_BYTES_MAX
from naiad.protocol.errors import Code, RequestError

ARENA_ID = 5


class NoMemory:
    """A client library without shared memory."""

    def share(self, inputs: Any) -> tuple[Any, None]:
        return inputs, None


class RefusedMemory(NoMemory):
    """Takes no request whose bytes are elsewhere, as it knows no such memory."""

    def __init__(self) -> None:
        self.taken: list[Prepared] = []

    def submit(self, parts: Prepared, receiver: Any) -> int:
        if any(one[3] == REGION and one[4] == ARENA_ID for one in parts.inputs):
            fault = RequestError("no such region", code=Code.NOT_FOUND)
            asyncio.get_running_loop().call_soon(receiver.set_exception, fault)
        else:
            self.taken.append(parts)
        return 1

    async def region_status(self, _: str) -> list[dict[str, int]]:
        return [{"id": 7}]


class ArenaOfTwo:
    """Two bytes."""

    view = memoryview(b"ab")

    def input(
        self, name: str, datatype: str, shape: tuple[int, ...], offset: int = 0, size: int = -1
    ) -> InferInput:
        return InferInput(name, datatype, shape, None, REGION, ARENA_ID, offset, size)


def parts_of(ident: str) -> Any:
    client: Any = NoMemory()
    return prepared(client, InferCall("m", -1, ident, ()), {})


@pytest.mark.parametrize("ident", ["", "i" * NAME_BYTES_MAX, "é" * NAME_BYTES_MAX])
def test_an_id_travels_as_the_label(ident: str) -> None:
    assert parts_of(ident).head == ("m", -1, ident)


@pytest.mark.parametrize(
    ("ident", "came"),
    [
        ("i" * (NAME_BYTES_MAX + 1), f"one of {NAME_BYTES_MAX + 1}: 'iii"),
        ("é" * (NAME_BYTES_MAX + 1), f"one of {NAME_BYTES_MAX + 1}: 'éé"),
        ("\ud800", r"'\\ud800'"),
    ],
)
def test_an_id_that_cannot_travel_is_called_id(ident: str, came: str) -> None:
    with pytest.raises(RequestError, match=rf"^expected id as a string .* got {came}") as caught:
        parts_of(ident)
    assert "label" not in caught.value.message


def test_a_call_that_goes_inline_after_all_keeps_what_was_looked_up() -> None:
    """The gateway's own memory is refused; the client's, which has a name, is there."""

    async def main() -> None:
        client: Any = RefusedMemory()
        inputs = (
            CallInput("A", "INT8", (2,), ArenaPart(ArenaOfTwo(), 0, 2)),
            CallInput("B", "INT8", (1,), RegionPart("there", 0, 1)),
        )
        outcomes: list[Any] = []
        call = InferCall("m", -1, "", inputs)
        pending = Pending(client, Lookups(client), LongWork(), call, outcomes.append, lambda: None)
        pending.start()
        for _ in range(20):
            await asyncio.sleep(0)
        assert outcomes == []
        (parts,) = client.taken
        sent = [(one[0], one[3], one[4], bytes(one[7] or b"")) for one in parts.inputs]
        assert sent == [("A", INLINE, 0, b"ab"), ("B", REGION, 7, b"")]

    asyncio.run(main())

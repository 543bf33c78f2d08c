"""Requests of a stream are begun in its order, also where something is looked up for one first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest
from tritonclient.grpc import service_pb2

from naiad.client.aio import AsyncClient
from naiad.client.requests import Prepared
from naiad.gateway.calls import CallInput, InferCall, RegionPart
from naiad.gateway.limits import Limits
from naiad.gateway.pending import BEGUN_AT_ONCE_MAX, Order, Outcome
from naiad.gateway.plane import Plane
from naiad.protocol.errors import Code, RequestError
from support.stream_client import StreamClient, request

TURNS_MAX = 1000
SHORT = [request(f"short{count}") for count in range(4)]


class Broker:
    """Refuses every request at the end of the turn, and remembers their order. What is looked up
    is answered when `opened`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.asked: list[str] = []
        self.opened = asyncio.Event()
        self.refusals: dict[str, Code] = {}
        """Of a request, the first time."""

    def share(self, inputs: Any) -> tuple[Any, None]:
        return inputs, None

    def submit(self, parts: Prepared, receiver: Any) -> int:
        ident = parts.head[2]
        self.begun.append(ident)
        code = self.refusals.pop(ident, Code.UNSUPPORTED)
        asyncio.get_running_loop().call_soon(self._refuse, receiver, code)
        return len(self.begun)

    def _refuse(self, receiver: Any, code: Code) -> None:
        if not receiver.done():
            receiver.set_exception(RequestError("refused", code=code))

    def abandon(self, _: int) -> None:
        """Nothing is left to do for it."""

    async def region_status(self, name: str) -> list[dict[str, int]]:
        self.asked.append(name)
        await self.opened.wait()
        if name == "nowhere":
            raise RequestError("unknown", code=Code.NOT_FOUND)
        return [{} if name == "odd" else {"id": 7}]

    async def class_labels(self, model: str, *_: Any) -> dict[str, Any]:
        self.asked.append(model)
        await self.opened.wait()
        return {"mark": "1", "batches": False, "labels": {}}


def in_region(ident: str, region: str = "there") -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m", id=ident)
    tensor = message.inputs.add(name="I", datatype="INT8", shape=[1])
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = 1
    return bytes(message.SerializeToString())


def for_classes(ident: str) -> bytes:
    message = service_pb2.ModelInferRequest.FromString(request(ident))
    message.outputs.add(name="O").parameters["classification"].int64_param = 1
    return bytes(message.SerializeToString())


Slow = Callable[[str], bytes]
SLOW = pytest.mark.parametrize("slow", [in_region, for_classes])


async def turns(until: Callable[[], bool]) -> None:
    for _ in range(TURNS_MAX):
        if until():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"not so after {TURNS_MAX} turns")


def new_plane(broker: Broker) -> Plane:
    return Plane(cast("AsyncClient", broker), Limits())


@SLOW
def test_none_overtakes_one_for_which_something_is_looked_up(slow: Slow) -> None:
    async def main() -> None:
        broker = Broker()
        plane = new_plane(broker)
        requests = [SHORT[0], slow("slow0"), SHORT[1], slow("slow1"), *SHORT[2:]]
        task = asyncio.create_task(StreamClient(plane).run(*requests))
        await turns(lambda: bool(broker.asked))
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
        assert broker.begun == ["short0"]
        broker.opened.set()
        found = [ident for ident, _ in await task]
        assert broker.begun == found
        assert found == ["short0", "slow0", "short1", "slow1", "short2", "short3"]
        assert (plane.budget.bytes, plane.calls.count) == (0, 0)

    asyncio.run(main())


@SLOW
def test_other_streams_go_on_meanwhile(slow: Slow) -> None:
    async def main() -> None:
        broker = Broker()
        plane = new_plane(broker)
        task = asyncio.create_task(StreamClient(plane).run(slow("slow")))
        await turns(lambda: bool(broker.asked))
        await StreamClient(plane).run(*SHORT)
        assert broker.begun == ["short0", "short1", "short2", "short3"]
        broker.opened.set()
        await task

    asyncio.run(main())


def test_what_is_not_found_is_an_item_in_its_place() -> None:
    async def main() -> None:
        broker = Broker()
        broker.opened.set()
        plane = new_plane(broker)
        found = await StreamClient(plane).run(SHORT[0], in_region("lost", "nowhere"), SHORT[1])
        assert [ident for ident, _ in found] == ["short0", "lost", "short1"]
        assert found[1][1] == "Unable to find shared memory region: 'nowhere'"
        assert broker.begun == ["short0", "short1"]
        assert (plane.budget.bytes, plane.calls.count) == (0, 0)

    asyncio.run(main())


@SLOW
def test_a_stream_that_is_given_up_meanwhile_leaves_nothing(slow: Slow) -> None:
    async def main() -> None:
        broker = Broker()
        plane = new_plane(broker)
        task = asyncio.create_task(StreamClient(plane).run(SHORT[0], slow("slow"), SHORT[1]))
        await turns(lambda: bool(broker.asked))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        broker.opened.set()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert broker.begun == ["short0"]
        assert (plane.budget.bytes, plane.calls.count) == (0, 0)

    asyncio.run(main())


@SLOW
def test_a_server_that_ends_answers_what_it_has_read(slow: Slow) -> None:
    async def main() -> None:
        broker = Broker()
        plane = new_plane(broker)
        client = StreamClient(plane)
        task = asyncio.create_task(client.run(slow("slow"), *SHORT))
        await turns(lambda: plane.calls.count == 5)
        client.stream.finish()
        broker.opened.set()
        with pytest.raises(Exception, match="Server exiting"):
            await task
        found = [one.infer_response.id for one in client.items]
        assert found == broker.begun == ["slow", "short0", "short1", "short2", "short3"]

    asyncio.run(main())


def test_what_is_looked_up_for_several_is_looked_up_side_by_side() -> None:
    async def main() -> None:
        broker = Broker()
        plane = new_plane(broker)
        requests = [in_region("a", "first"), in_region("b", "nowhere"), for_classes("c"), SHORT[0]]
        task = asyncio.create_task(StreamClient(plane).run(*requests))
        await turns(lambda: len(broker.asked) == 3 and plane.calls.count == 4)
        assert broker.begun == []
        broker.opened.set()
        assert [ident for ident, _ in await task] == ["a", "b", "c", "short0"]
        assert broker.begun == ["a", "c", "short0"]

    asyncio.run(main())


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_goes_before_its_turn_lets_nobody_overtake(gone: int) -> None:
    async def main() -> None:
        broker = Broker()
        plane = new_plane(broker)
        order = Order()
        outcomes: list[Outcome] = []
        region = (CallInput("I", "INT8", (1,), RegionPart("there", 0, 1)),)
        calls = [InferCall("m", -1, ident, region) for ident in "abc"]
        calls.append(InferCall("m", -1, "d", ()))
        pending = [plane.start(call, outcomes.append, order) for call in calls]
        pending[gone].cancel()  # nothing of it has run
        await turns(lambda: bool(broker.asked))
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
        assert broker.begun == []
        broker.opened.set()
        await turns(lambda: len(outcomes) == 3)
        assert broker.begun == [call.id for call in calls if call.id != "abcd"[gone]]
        assert plane.calls.count == 0

    asyncio.run(main())


def test_one_that_is_not_found_at_once_lets_nobody_overtake() -> None:
    async def main() -> None:
        broker = Broker()
        plane = new_plane(broker)
        requests = [for_classes("a"), in_region("b", ""), SHORT[0]]
        task = asyncio.create_task(StreamClient(plane).run(*requests))
        await turns(lambda: bool(broker.asked))
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
        assert broker.begun == []
        broker.opened.set()
        found = await task
        assert [ident for ident, _ in found] == ["a", "b", "short0"]
        assert "expected a name" in found[1][1]
        assert broker.begun == ["a", "short0"]

    asyncio.run(main())


def test_those_that_waited_are_begun_a_few_at_once() -> None:
    async def main() -> None:
        broker = Broker()
        plane = new_plane(broker)
        behind = [request(f"{number}") for number in range(3 * BEGUN_AT_ONCE_MAX)]
        task = asyncio.create_task(StreamClient(plane).run(in_region("slow"), *behind))
        await turns(lambda: plane.calls.count == 1 + len(behind))
        broker.opened.set()
        counts = [0]
        while not task.done():
            counts.append(len(broker.begun))
            await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise(counts)) == BEGUN_AT_ONCE_MAX
        assert broker.begun == [ident for ident, _ in await task]

    asyncio.run(main())


def test_a_fault_of_our_own_is_an_item_too(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        broker = Broker()
        broker.opened.set()
        plane = new_plane(broker)
        found = await StreamClient(plane).run(in_region("a", "odd"), SHORT[0])
        assert [error.split(";")[0] for _, error in found] == [
            "a call could not be begun inside the gateway",
            "refused",
        ]
        assert plane.calls.count == 0

    asyncio.run(main())
    assert "KeyError" in caplog.text


def test_a_region_that_was_registered_anew_is_asked_for_again() -> None:
    async def main() -> None:
        broker = Broker()
        broker.opened.set()
        broker.refusals["first"] = Code.NOT_FOUND
        plane = new_plane(broker)
        found = await StreamClient(plane).run(in_region("first"), in_region("second"))
        assert [error for _, error in found] == ["refused", "refused"]
        assert broker.begun.count("first") == 2
        assert broker.asked == ["there", "there"]

    asyncio.run(main())

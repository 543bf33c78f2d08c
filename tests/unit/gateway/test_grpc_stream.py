"""Requests of one stream reach their model in their order, however long each takes to be read."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from naiad.gateway import grpc_stream
from naiad.gateway.budget import Budget
from naiad.gateway.calls import InferAnswer, InferCall
from naiad.gateway.grpc_codec.wire import is_light
from naiad.gateway.grpc_service import any_call_of
from naiad.gateway.long_work import UNDER_WAY_BYTES_MAX, LongWork
from naiad.gateway.pending import Order
from naiad.gateway.turns import TURN_SECONDS, Turns
from support.clocks import Clock
from support.stream_client import StreamClient, request

BUDGET = 1_000_000


class FakePlane:
    """Answers every call when all have come, and remembers their order."""

    def __init__(self, expected: int, turns: Turns | None = None) -> None:
        self.budget = Budget(BUDGET)
        self.long_work = LongWork()
        self.turns = turns or Turns()
        self.begun: list[str] = []
        self._expected = expected
        self._all = asyncio.Event()

    async def infer(self, call: InferCall, _: Order) -> InferAnswer:
        self.begun.append(call.id)
        if len(self.begun) == self._expected:
            self._all.set()
        await self._all.wait()
        return InferAnswer(call.model, 1, call.id, ())


LONG = request("long", 40_000)
SHORT = [request(f"short{count}") for count in range(3)]


def test_none_overtakes_one_that_takes_long_to_read() -> None:
    async def main() -> None:
        assert not is_light(LONG)
        plane = FakePlane(4)
        found = await StreamClient(plane).run(SHORT[0], LONG, *SHORT[1:])
        order = ["short0", "long", "short1", "short2"]
        assert plane.begun == order
        assert found == [(ident, "") for ident in order]
        assert plane.budget.bytes == 0

    asyncio.run(main())


def test_other_streams_do_not_wait_for_it() -> None:
    async def main() -> None:
        plane = FakePlane(3)
        await asyncio.gather(StreamClient(plane).run(LONG), StreamClient(plane).run(*SHORT[:2]))
        assert plane.begun == ["short0", "short1", "long"]

    asyncio.run(main())


def test_one_that_cannot_be_read_keeps_its_place() -> None:
    async def main() -> None:
        plane = FakePlane(2)
        found = await StreamClient(plane).run(SHORT[0], LONG + b"\x07", SHORT[1])
        assert [error[:28] for _, error in found] == ["", "the request is not a ModelIn", ""]
        assert plane.begun == ["short0", "short1"]
        assert plane.budget.bytes == 0

    asyncio.run(main())


def test_one_beyond_the_budget_keeps_its_place_and_takes_nothing() -> None:
    async def main() -> None:
        plane = FakePlane(2)
        found = await StreamClient(plane).run(SHORT[0], bytes(BUDGET + 1), SHORT[1])
        assert [f"at most {BUDGET}" in error for _, error in found] == [False, True, False]
        assert plane.budget.bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 6])
def test_a_stream_that_is_given_up_holds_nothing(turns: int) -> None:
    async def main() -> None:
        plane = FakePlane(9)
        task = asyncio.create_task(StreamClient(plane).run(SHORT[0], LONG, *SHORT[1:]))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert plane.budget.bytes == 0
        over = asyncio.Event()
        over.set()
        # Refused unless all of it is free again.
        await plane.long_work.run(UNDER_WAY_BYTES_MAX, _until(over))

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 8])
def test_requests_that_came_together_share_a_turn(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many streams too: what others asked for comes in between. None waits for ever."""
    clock = Clock()
    iteration = 0
    read: list[tuple[int, str]] = []
    decode = any_call_of

    async def counted(*args: Any) -> InferCall:
        clock.seconds += TURN_SECONDS / 4
        call = await decode(*args)
        read.append((iteration, call.id))
        return call

    monkeypatch.setattr(grpc_stream, "any_call_of", counted)

    async def main() -> None:
        nonlocal iteration
        plane = FakePlane(count * 40, Turns(clock))
        clients = [
            asyncio.create_task(
                StreamClient(plane).run(*[request(f"{n}-{at}") for at in range(40)])
            )
            for n in range(count)
        ]
        while not all(one.done() for one in clients):
            iteration += 1
            await asyncio.sleep(0)
        for n, one in enumerate(clients):
            assert await one == [(f"{n}-{at}", "") for at in range(40)]
        if count > 1:  # none gets far before all have had a turn
            early = [ident.split("-")[0] for _, ident in read[: 8 * count]]
            assert len(set(early)) == count

    asyncio.run(main())
    by_iteration = [at for at, _ in read]
    assert max(map(by_iteration.count, by_iteration)) <= 4


class HeadedPlane(FakePlane):
    """Answers at once, but for the first request of each stream: those together, when told to."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(0, turns)
        self.answered = 0
        self.told = asyncio.Event()

    async def infer(self, call: InferCall, _: Order) -> InferAnswer:
        if call.id == "0":
            await self.told.wait()
        self.answered += 1
        return InferAnswer(call.model, 1, call.id, ())


@pytest.mark.parametrize("count", [1, 8])
def test_answers_that_waited_for_one_are_not_written_all_at_once(count: int) -> None:
    clock = Clock()
    iteration = 0
    written: list[int] = []

    class SlowClient(StreamClient):
        async def _write(self, *item: bytes | memoryview) -> None:
            await super()._write(*item)
            clock.seconds += TURN_SECONDS / 4
            written.append(iteration)

    async def main() -> None:
        nonlocal iteration
        plane = HeadedPlane(Turns(clock))
        requests = [request(f"{number}") for number in range(40)]
        clients = [asyncio.create_task(SlowClient(plane).run(*requests)) for _ in range(count)]
        while plane.answered < 39 * count:
            await asyncio.sleep(0)
        plane.told.set()
        while not all(one.done() for one in clients):
            iteration += 1
            await asyncio.sleep(0)
        for one in clients:
            assert await one == [(f"{number}", "") for number in range(40)]

    asyncio.run(main())
    # Those that were waited for, and those of one turn.
    assert max(map(written.count, written)) <= count + 4


def test_who_gives_up_waiting_for_the_turn_holds_up_nobody() -> None:
    async def main() -> None:
        clock = Clock()
        turns = Turns(clock)
        await turns.share()
        clock.seconds += TURN_SECONDS
        waiting = [asyncio.create_task(turns.share()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)  # the second one is woken
        waiting[1].cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert waiting[2].done()
        await turns.share()

    asyncio.run(main())


def test_raw_contents_do_not_count_as_work() -> None:
    """Nothing is done to them: with many fields beside them as few may be under way otherwise."""

    async def main() -> None:
        tensors = [
            service_pb2.ModelInferRequest.InferInputTensor(name=f"I{n}", datatype="INT8", shape=[1])
            for n in range(70)
        ]
        raw = service_pb2.ModelInferRequest(
            model_name="m", inputs=tensors, raw_input_contents=[bytes(10_000)] * 70
        ).SerializeToString()
        assert not is_light(raw)
        plane = FakePlane(1)
        over = asyncio.Event()
        others = plane.long_work.run(UNDER_WAY_BYTES_MAX - 5_000, _until(over))
        task = asyncio.create_task(others)
        await asyncio.sleep(0)
        assert await StreamClient(plane).run(raw) == [("", "")]
        over.set()
        await task

    asyncio.run(main())


def _until(over: asyncio.Event) -> Generator[None, None, None]:
    while not over.is_set():
        yield

"""One question of many clients, asked once: and nobody is told what was so before they asked."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from naiad.gateway.shared_answers import SharedAnswers
from naiad.protocol.errors import RequestError


class Source:
    """Says how often it was asked, when it is let."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self._answers = asyncio.Semaphore(0)

    async def ask(self, what: str = "config") -> int:
        self.times[what] += 1
        mine = self.times[what]
        await self._answers.acquire()
        return mine

    def let(self, answers: int = 1) -> None:
        for _ in range(answers):
            self._answers.release()


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def begin(shared: SharedAnswers, source: Source, count: int) -> list[asyncio.Task[int]]:
    return [asyncio.ensure_future(shared.get("config", source.ask)) for _ in range(count)]


def check_empty(shared: SharedAnswers) -> None:
    assert shared._asked == shared._next == {}


@in_loop
async def test_who_comes_while_it_is_asked_shares_the_next() -> None:
    shared, source = SharedAnswers(), Source()
    early = begin(shared, source, 1)
    await rounds()
    late = begin(shared, source, 100)
    await rounds()
    assert source.times["config"] == 1
    source.let(2)
    assert await asyncio.gather(*early, *late) == [1] + [2] * 100
    check_empty(shared)


@in_loop
async def test_later_questions_are_asked_again() -> None:
    shared, source = SharedAnswers(), Source()
    source.let(3)
    assert [await shared.get("config", source.ask) for _ in range(3)] == [1, 2, 3]
    check_empty(shared)


@in_loop
async def test_three_generations() -> None:
    """The third waits for the second, which was next when the first was asked."""
    shared, source = SharedAnswers(), Source()
    first = begin(shared, source, 1)
    await rounds()
    second = begin(shared, source, 2)
    await rounds()
    source.let()
    assert await first[0] == 1
    await rounds()
    assert source.times["config"] == 2
    third = begin(shared, source, 2)
    await rounds()
    assert source.times["config"] == 2
    source.let(2)
    assert await asyncio.gather(*second, *third) == [2, 2, 3, 3]
    check_empty(shared)


@in_loop
async def test_other_questions_do_not_wait() -> None:
    shared, source, other = SharedAnswers(), Source(), Source()
    blocked = begin(shared, source, 2)
    await rounds()
    other.let()
    assert await shared.get("metadata", other.ask) == 1
    source.let()
    assert await asyncio.gather(*blocked) == [1, 1]
    check_empty(shared)


@in_loop
async def test_a_fault_is_for_those_who_asked_then() -> None:
    shared = SharedAnswers()
    outcomes: list[RequestError | str] = [RequestError("no such model"), "found"]

    async def ask() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, RequestError):
            raise outcome
        return outcome

    waiting = [shared.get("config", ask) for _ in range(3)]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(one) for one in found] == ["no such model"] * 3
    assert await shared.get("config", ask) == "found"
    check_empty(shared)


@in_loop
async def test_who_goes_away_takes_the_answer_from_nobody() -> None:
    shared, source = SharedAnswers(), Source()
    waiting = begin(shared, source, 3)
    await rounds()
    waiting[0].cancel()
    await rounds()
    source.let()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [1, 1]
    check_empty(shared)


@in_loop
async def test_all_go_away() -> None:
    """Nothing stays behind, and a fault that nobody hears is no complaint of the event loop's."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    shared = SharedAnswers()
    may_fail = asyncio.Event()

    async def ask() -> None:
        await may_fail.wait()
        raise RequestError("no such model")

    waiting = [asyncio.ensure_future(shared.get("config", ask)) for _ in range(3)]
    await rounds()
    for one in waiting:
        one.cancel()
    await rounds()
    may_fail.set()
    await rounds()
    check_empty(shared)
    waiting.clear()
    gc.collect()
    assert complaints == []

"""Whose turn it is, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from naiad.gateway.turns import TURN_SECONDS, Turns
from support.clocks import Clock

PIECE_SECONDS = TURN_SECONDS / 4
ITERATIONS_MAX = 200


class Greedy:
    """Comes again until its pieces are done."""

    def __init__(self, turns: Turns, clock: Clock, pieces: int, done: list[Greedy]) -> None:
        self._turns = turns
        self._clock = clock
        self.left = pieces
        self._done = done

    def work(self) -> None:
        self._clock.seconds += PIECE_SECONDS
        self.left -= 1
        self._done.append(self)
        if self.left:
            self._turns.later(self, self.work)


async def iterations(until: Callable[[], bool], each: Callable[[], None]) -> None:
    for _ in range(ITERATIONS_MAX):
        if until():
            return
        each()
        await asyncio.sleep(0)
    raise AssertionError(f"not over after {ITERATIONS_MAX} iterations")


def test_one_after_the_other_for_one_turn_in_each_iteration() -> None:
    async def go() -> None:
        clock, done = Clock(), list[Greedy]()
        turns = Turns(clock)
        many = [Greedy(turns, clock, 3, done) for _ in range(6)]
        counts: list[int] = []
        for one in many:
            turns.later(one, one.work)
            turns.later(one, one.work)  # it has one place

        await iterations(
            lambda: not any(one.left for one in many), lambda: counts.append(len(done))
        )

        assert done == many * 3
        per_iteration = {after - before for before, after in pairwise(counts)}
        assert per_iteration <= {0, round(TURN_SECONDS / PIECE_SECONDS)}

    asyncio.run(go())


def test_who_is_alone_comes_once_in_an_iteration() -> None:
    async def go() -> None:
        clock, done = Clock(), list[Greedy]()
        turns = Turns(clock)
        one = Greedy(turns, clock, 3, done)
        turns.later(one, one.work)
        counts: list[int] = []
        await iterations(lambda: not one.left, lambda: counts.append(len(done)))
        assert counts == [0, 1, 2]

    asyncio.run(go())


def test_calls_that_may_wait_have_a_turn_each() -> None:
    async def go() -> None:
        turns, woken = Turns(Clock()), list[int]()

        async def wait(number: int) -> None:
            await turns.turn()
            woken.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(50)]
        tasks[7].cancel()
        most, before = 0, 0

        def look() -> None:
            nonlocal most, before
            most, before = max(most, len(woken) - before), len(woken)

        await iterations(lambda: len(woken) == 49, look)
        assert woken == [number for number in range(50) if number != 7]
        assert most == 1

    asyncio.run(go())


def test_connections_do_not_wait_behind_calls() -> None:
    async def go() -> None:
        clock, done = Clock(), list[Greedy]()
        turns = Turns(clock)
        tasks = [asyncio.create_task(turns.turn()) for _ in range(100)]
        await asyncio.sleep(0)
        one = Greedy(turns, clock, 3, done)
        turns.later(one, one.work)
        left: list[int] = []
        await iterations(lambda: not one.left, lambda: left.append(one.left))
        assert left == [3, 2, 1]
        assert sum(task.done() for task in tasks) <= len(left)
        for task in tasks:
            task.cancel()

    asyncio.run(go())


class Transport(asyncio.Transport):
    def __init__(self, clock: Clock, *, is_tls: bool = False) -> None:
        super().__init__({"sslcontext": object()} if is_tls else None)
        self._clock = clock
        self.is_closed = False

    def close(self) -> None:
        self._clock.seconds += PIECE_SECONDS
        self.is_closed = True


def test_those_that_go_together_are_closed_in_turns() -> None:
    async def go() -> None:
        clock = Clock()
        turns = Turns(clock)
        gone = [Transport(clock) for _ in range(12)]
        for one in gone:
            assert turns.close_later(one)
        closed: list[int] = []
        await iterations(
            lambda: all(one.is_closed for one in gone),
            lambda: closed.append(sum(one.is_closed for one in gone)),
        )
        assert closed == [0, 4, 8]

    asyncio.run(go())


def test_with_tls_nothing_is_closed_later() -> None:
    clock = Clock()
    assert not Turns(clock).close_later(Transport(clock, is_tls=True))


def test_a_failure_keeps_nobody_from_a_turn() -> None:
    async def go() -> None:
        faults: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        clock, done = Clock(), list[Greedy]()
        turns = Turns(clock)
        fault = ValueError("planted")

        def fail() -> None:
            raise fault

        turns.later(fault, fail)
        other = Greedy(turns, clock, 2, done)
        turns.later(other, partial(other.work))
        await iterations(lambda: not other.left, lambda: None)
        assert faults == [fault]

    asyncio.run(go())

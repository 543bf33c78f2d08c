"""When everything is looked at, with the real collector and a clock that the test moves."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from itertools import repeat

import pytest

from naiad.gateway import garbage as module
from naiad.gateway.garbage import (
    CHECK_SECONDS,
    GROWTH_OBJECTS_MAX,
    YOUNG_COLLECTIONS,
    YOUNG_OBJECTS,
    Garbage,
    grown,
)
from support.clocks import Clock

BUSY_SECONDS = CHECK_SECONDS / 2
DEADLINE_S = 5.0


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """This process's, as it was, afterwards."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def started(clock: Clock) -> Garbage:
    garbage = Garbage(clock)
    garbage.start(asyncio.get_running_loop())
    garbage.stop()  # the test checks
    return garbage


def old_cycle() -> weakref.ref[Cycle]:
    """Garbage that is looked at only with everything."""
    one = Cycle()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(one)


def objects(count: int) -> list[list[object]]:
    """So many that may be part of a cycle."""
    return [[] for _ in repeat(None, count)]


def test_garbage_that_has_grown_old_goes_when_nothing_else_is_done() -> None:
    async def go() -> None:
        clock = Clock()
        garbage = await started(clock)
        left = old_cycle()
        clock.seconds += BUSY_SECONDS
        garbage.check()
        assert left() is not None  # not now
        garbage.check()
        assert left() is None

    asyncio.run(go())


def test_growth_ends_though_there_is_no_idle_moment() -> None:
    async def go() -> None:
        clock = Clock()
        garbage = await started(clock)
        left, most = old_cycle(), 0
        while left() is not None:
            kept = objects(GROWTH_OBJECTS_MAX // 10)
            clock.seconds += BUSY_SECONDS
            most = max(most, grown())
            assert most < 2 * GROWTH_OBJECTS_MAX
            garbage.check()
            held.append(kept)
        assert most > GROWTH_OBJECTS_MAX

    held: list[object] = []
    asyncio.run(go())


def test_nobody_else_looks_at_everything_while_connections_come() -> None:
    looks: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "stop":
            looks.append(about["generation"])

    async def go() -> None:
        await started(Clock())
        gc.callbacks.append(note)
        try:
            kept = objects(50 * YOUNG_OBJECTS * YOUNG_COLLECTIONS)
        finally:
            gc.callbacks.remove(note)
        assert len(kept) > 0
        assert set(looks) == {0, 1}

    asyncio.run(go())


def test_nothing_new_is_nothing_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that stay and ask nothing cost no look at each of them every second."""

    async def go() -> None:
        garbage = await started(Clock())
        looks: list[object] = []
        gc.collect()
        monkeypatch.setattr(gc, "collect", lambda: looks.append(None))
        garbage.check()
        assert looks == []

    asyncio.run(go())


def test_it_checks_by_itself_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)

    async def go() -> None:
        garbage = Garbage(Clock())
        garbage.start(asyncio.get_running_loop())
        for _ in range(2):
            left = old_cycle()
            async with asyncio.timeout(DEADLINE_S):
                while left() is not None:
                    await asyncio.sleep(0.001)
        garbage.stop()

    asyncio.run(go())

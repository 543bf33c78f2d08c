"""What a listener does with all of its connections, some of which fail."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from naiad.gateway import listener as module
from naiad.gateway.limits import Limits
from naiad.gateway.listener import CHECKED_AT_ONCE, Listener
from naiad.gateway.phase import Phase

DEADLINE_S = 5.0
CHECKS = 3


class Broken:
    """Raises whatever is asked of it, but goes when it is cut off."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def check_time(self, now: float) -> None:
        raise OSError("not connected")

    def go_elsewhere(self) -> None:
        raise OSError("not connected")

    def leave(self) -> None:
        raise OSError("not connected")

    def close(self) -> None:
        raise OSError("not connected")

    def abort(self) -> None:
        self._door.connections.discard(self)


class Sound(Broken):
    def __init__(self, door: Door) -> None:
        super().__init__(door)
        self.checks = 0
        self.checked = asyncio.Event()
        self.has_left = False

    def check_time(self, now: float) -> None:
        self.checks += 1
        if self.checks == CHECKS:
            self.checked.set()

    def leave(self) -> None:
        self.has_left = True
        self.abort()


class Door(Listener[Any]):
    def _connection(self, loop: asyncio.AbstractEventLoop) -> asyncio.BaseProtocol:
        return asyncio.Protocol()

    def _is_busy(self) -> bool:
        return False


def test_a_connection_that_fails_is_cut_off_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)
    caplog.set_level(logging.ERROR)

    async def scenario() -> None:
        door = Door(Phase(), Limits(), [])
        await door.start()
        sound = Sound(door)
        door.connections |= {Broken(door), sound, Broken(door)}
        await asyncio.wait_for(sound.checked.wait(), DEADLINE_S)
        assert door.connections == {sound}
        door.connections.add(Broken(door))
        assert await door.drain(DEADLINE_S)
        assert sound.has_left
        assert not door.connections

    asyncio.run(scenario())
    assert "not connected" in caplog.text


def test_many_connections_are_checked_in_parts() -> None:
    count = 3 * CHECKED_AT_ONCE + 1

    async def scenario() -> None:
        door = Door(Phase(), Limits(), [])
        every = [Sound(door) for _ in range(count)]
        door.connections |= set(every)
        await door.start()
        checked = [sum(one.checks for one in every)]
        while checked[-1] < count:
            await asyncio.sleep(0)
            checked.append(sum(one.checks for one in every))
        door.close()
        parts = [after - before for before, after in pairwise(checked)]
        assert checked[0] == CHECKED_AT_ONCE
        assert parts == [CHECKED_AT_ONCE, CHECKED_AT_ONCE, 1]
        assert {one.checks for one in every} == {1}

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))

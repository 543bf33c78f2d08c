"""Answers that come together are handed on a few at once: an event loop has other things to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zmq

from naiad.client import AsyncClient
from naiad.client.driver import COMPLETIONS_PER_TURN_MAX
from naiad.client.event_loop import SETTLED_AT_ONCE_MAX
from naiad.client.fields import packed
from naiad.client.requests import PLAIN, InferInput, Prepared, checked
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints
from support.clients import PATIENCE_S

BROKER = 7
COUNT = 600
PARTS: Prepared = checked(("m", -1, ""), (packed(InferInput("x", "UINT8", (1,), b"x")),), PLAIN)


class Waiter:
    """Remembers which answers came, over all waiters of a test."""

    def __init__(self, number: int, came: list[int]) -> None:
        self._number = number
        self._came = came

    def done(self) -> bool:
        return False

    def set_result(self, _: Any, /) -> None:
        self._came.append(self._number)

    def set_exception(self, fault: Exception, /) -> None:
        raise fault


class Router:
    """The broker's end: answers when it is told to, in this event loop."""

    def __init__(self, run_dir: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(Endpoints(str(run_dir)).clients)
        self._peer = b""

    async def take(self, count: int) -> list[int]:
        """Be welcoming until so many requests have come; their ids."""
        ids: list[int] = []
        while len(ids) < count:
            await until(lambda: bool(self._socket.poll(0)))
            self._peer, header, *frames = self._socket.recv_multipart()
            message = decode(header, [len(frame) for frame in frames], m.CLIENT_HEADER_BYTES_MAX)
            if isinstance(message, m.Hello):
                self.send(m.Welcome(BROKER, "s", "t", 4096, 1 << 20, 1 << 20, False))
            else:
                assert isinstance(message, m.Infer)
                ids += [one.id for one in message.requests]
        return ids

    def send(self, message: m.Message) -> None:
        self._socket.send_multipart([self._peer, encode(message)])

    def answer(self, ids: list[int]) -> None:
        """In one message."""
        self.send(m.Answers(BROKER, tuple([m.InferAnswer(ident, None, 1, ()) for ident in ids])))

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def router(run_dir: Path) -> Iterator[Router]:
    router = Router(run_dir)
    yield router
    router.close()


async def until(is_so: Callable[[], bool], each: Callable[[], None] = lambda: None) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0)
            each()


def test_an_event_loop_has_its_turn_between_many_answers(run_dir: Path, router: Router) -> None:
    came: list[int] = []
    counts = [0]
    unsettled = [0]

    async def main() -> None:
        client = AsyncClient(run_dir)
        waiters = [Waiter(number, came) for number in range(COUNT)]
        numbers = {client.submit(PARTS, waiter): n for n, waiter in enumerate(waiters)}
        ids = await router.take(COUNT)
        assert [numbers[ident] for ident in ids] == [*range(COUNT)]

        def look() -> None:
            counts.append(len(came))
            unsettled.append(len(client._completions))

        third = COUNT // 3
        router.answer(ids[:third])
        router.answer(ids[third : 2 * third])
        await until(lambda: bool(came), look)
        assert len(came) < third
        router.answer(ids[2 * third :])  # while others are handed on: it must not be missed
        await until(lambda: len(came) == COUNT, look)
        await client.close()

    asyncio.run(main())
    assert came == [*range(COUNT)]
    assert max(after - before for before, after in pairwise(counts)) <= SETTLED_AT_ONCE_MAX
    assert max(unsettled) < COMPLETIONS_PER_TURN_MAX + COUNT // 3


def test_a_client_that_closes_hands_on_all_of_them(run_dir: Path, router: Router) -> None:
    came: list[int] = []

    async def main() -> None:
        client = AsyncClient(run_dir)
        for number in range(COUNT):
            client.submit(PARTS, Waiter(number, came))
        router.answer(await router.take(COUNT))
        await until(lambda: bool(came))
        await client.close()

    asyncio.run(main())
    assert came == [*range(COUNT)]

"""What a broker said before it closed the connection counts, even when both are seen at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from naiad.client import AsyncClient, Client, NaiadError
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints

ARRAYS = {"INPUT0": np.zeros(1)}
ROUNDS = 20
"""Which of the two is looked at first is chance."""


class DepartingBroker(threading.Thread):
    """Answers one request, when it is told to, and closes its socket in the same breath."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(Endpoints(str(run_dir)).clients)

    def run(self) -> None:
        peer, header, *payload = self._router.recv_multipart()
        assert type(decode(header, [len(frame) for frame in payload])) is m.Hello
        welcome = m.Welcome(7, "departing", "0", 100, 10**6, 10**6, False)
        self._router.send_multipart([peer, encode(welcome)])
        peer, header, *payload = self._router.recv_multipart()
        message = decode(header, [len(frame) for frame in payload])
        assert type(message) is m.Infer
        self.asked.set()
        self.may_answer.wait()
        error = ("draining", "the last words", True)
        answer = m.InferAnswer(message.requests[0].id, error, -1, ())
        self._router.send_multipart([peer, encode(m.Answers(7, (answer,)))])
        self._router.close(linger=1000)
        self._context.term()


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, DepartingBroker]]:
    run_dir = tmp_path_factory.mktemp("run")
    broker = DepartingBroker(run_dir)
    broker.start()
    yield run_dir, broker
    broker.may_answer.set()
    broker.join()


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_the_blocking_client_hears_them(broker: tuple[Path, DepartingBroker], _round: int) -> None:
    run_dir, departing = broker
    with Client(run_dir, connect_timeout_s=2) as client:
        future = client.submit("m", ARRAYS)
        client_waits = threading.Thread(target=future.exception, args=(20,))
        client_waits.start()
        departing.asked.wait(20)
        departing.may_answer.set()
        client_waits.join()
        with pytest.raises(NaiadError, match="the last words"):
            future.result(timeout=20)


def test_the_asynchronous_client_hears_them(broker: tuple[Path, DepartingBroker]) -> None:
    run_dir, departing = broker

    async def ask() -> None:
        async with AsyncClient(run_dir, connect_timeout_s=2) as client:
            question = asyncio.ensure_future(client.infer("m", ARRAYS))
            while not departing.asked.is_set():
                await asyncio.sleep(0.001)
            departing.may_answer.set()
            departing.join()  # the loop stands still: it will find both at once
            await question

    with pytest.raises(NaiadError, match="the last words"):
        asyncio.run(ask())

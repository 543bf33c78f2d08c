"""That a worker's sleep misses nothing, whatever it did with its socket before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from naiad.worker.transport import Transport
from support import bursts
from support.bursts import PATIENCE_MS
from support.waiting import wait_until

MESSAGES = 20_000
DEADLINE_S = PATIENCE_MS / 1000
SENDS = 10


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/b.sock"


@pytest.fixture
def wake() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    yield reading, writing
    os.close(reading)
    os.close(writing)


@pytest.fixture
def transport(address: str, wake: tuple[int, int]) -> Iterator[Transport]:
    one = Transport(address, wake[0], lambda: None)
    one.start(lambda: None)
    yield one
    one.close(0)


@pytest.fixture
def broker(address: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as one:
        one.linger = 0
        one.rcvtimeo = PATIENCE_MS
        one.bind(address)
        yield one


def next_header(transport: Transport) -> bytes:
    """The next message's; no sleep on the way to it takes its whole time."""
    while True:
        began = time.monotonic()
        transport.poll(PATIENCE_MS // 2)
        assert time.monotonic() - began < DEADLINE_S / 2, "a sleep ended without anything"
        frames = transport.receive()
        if frames is not None:
            return frames[0]


def test_no_message_waits_for_the_end_of_a_sleep(transport: Transport, address: str) -> None:
    process = subprocess.Popen(
        [sys.executable, bursts.__file__, "bind", address, str(MESSAGES), "3"]
    )
    for number in range(MESSAGES):
        assert next_header(transport) == b"%d" % number
        assert transport.send(b"answer")
    assert process.wait(DEADLINE_S) == 0


def test_a_signal_that_a_send_took_away_is_not_lost(
    transport: Transport, broker: zmq.Socket[bytes]
) -> None:
    """libzmq lets a send look at its mailbox once in a millisecond or so."""
    assert transport.send(b"hello")
    name, _ = broker.recv_multipart()
    broker.send_multipart([name, b"first"])
    assert next_header(transport) == b"first"
    assert not transport.poll(0)
    broker.send_multipart([name, b"second"])
    for _ in range(SENDS):
        assert transport.send(b"x")
        wait_until(lambda: broker.poll(0), "nothing was sent")
        broker.recv_multipart()
    assert next_header(transport) == b"second"


def test_a_wake_up_is_seen_beside_messages(
    transport: Transport, broker: zmq.Socket[bytes], wake: tuple[int, int]
) -> None:
    assert transport.send(b"hello")
    name, _ = broker.recv_multipart()
    broker.send_multipart([name, b"word"])
    wait_until(lambda: transport.poll(0), "it did not come")
    os.write(wake[1], b"x")
    assert transport.poll(PATIENCE_MS)
    with pytest.raises(BlockingIOError):
        os.read(wake[0], 1)  # it has been
    assert next_header(transport) == b"word"
    os.write(wake[1], b"x")
    began = time.monotonic()
    assert not transport.poll(PATIENCE_MS)
    assert time.monotonic() - began < DEADLINE_S / 2


def test_the_socket_of_each_new_connection_is_watched(
    transport: Transport, broker: zmq.Socket[bytes]
) -> None:
    for number in range(3):
        assert transport.send(b"hello")
        name, _ = broker.recv_multipart()
        wait_until(lambda: not transport.poll(0) and transport.is_connected, "no connection")
        broker.send_multipart([name, b"%d" % number])
        assert next_header(transport) == b"%d" % number
        transport.break_off()

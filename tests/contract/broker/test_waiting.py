"""That the loop's sleep misses nothing, whatever sockets and descriptors do around it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from naiad.broker.timer import Timer
from naiad.broker.transport import MESSAGES_PER_DRAIN_MAX, Transport
from naiad.broker.waiting import WRITABLE, Waiting
from support import bursts
from support.bursts import PATIENCE_MS
from support.waiting import wait_until

MESSAGES = 10_000
"""Over each of two sockets."""
DEADLINE_S = PATIENCE_MS / 1000

Dealer = zmq.Socket[bytes]


def is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    one: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield one
    one.term()


@pytest.fixture
def dealers(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[Callable[[str], Dealer]]:
    """Makes sockets that connect to an address; closes them."""
    made: list[Dealer] = []

    def connected(address: str) -> Dealer:
        made.append(context.socket(zmq.DEALER))
        made[-1].linger = 0
        made[-1].connect(address)
        return made[-1]

    yield connected
    for one in made:
        one.close()


@pytest.fixture
def transports(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> Iterator[tuple[Transport, Transport]]:
    first, second = (
        Transport(
            context,
            f"ipc://{tmp_path}/{name}.sock",
            frame_bytes_max=1 << 20,
            outbox_bytes_max=1 << 24,
            connections_max=100,
        )
        for name in ("first", "second")
    )
    first.start()
    second.start()
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def waiting(transports: tuple[Transport, Transport]) -> Waiting:
    one = Waiting()
    one.watch_sockets(transports)
    return one


def routing_id(dealer: Dealer, transport: Transport, waiting: Waiting) -> bytes:
    """Of somebody who has just connected; the transport has nothing more to read then."""
    dealer.send(b"hello")
    found: list[bytes] = []
    while not found:
        assert waiting.wait(PATIENCE_MS)
        found += [one.peer for one in transport.drain()]
    wait_until(lambda: not waiting.wait(0) or list(transport.drain()), "it never falls silent")
    return found[0]


def test_no_message_waits_for_the_end_of_a_sleep(
    transports: tuple[Transport, Transport], waiting: Waiting
) -> None:
    """20,000 messages from two processes in random bursts, each answered at once over the same
    socket: a lost wake-up would be a wait that ends without anything."""
    processes = [
        subprocess.Popen(
            [sys.executable, bursts.__file__, "connect", one.address, str(MESSAGES), seed]
        )
        for one, seed in zip(transports, "12", strict=True)
    ]
    by_descriptor = {one.descriptor: one for one in transports}
    numbers: dict[Transport, list[int]] = {one: [] for one in transports}
    while any(len(some) < MESSAGES for some in numbers.values()):
        ready = waiting.wait(PATIENCE_MS // 2)
        assert ready, f"nothing came: {[len(some) for some in numbers.values()]}"
        for descriptor in ready:
            transport = by_descriptor[descriptor]
            taken = list(transport.drain())
            numbers[transport] += [int(one.header) for one in taken]
            assert all(transport.send(one.peer, [b"answer"]) for one in taken)
    for process in processes:
        assert process.wait(DEADLINE_S) == 0
    assert all(some == list(range(MESSAGES)) for some in numbers.values())


def test_a_signal_that_a_send_took_away_is_not_lost(
    dealers: Callable[[str], Dealer],
    transports: tuple[Transport, Transport],
    waiting: Waiting,
) -> None:
    transport = transports[0]
    peer = dealers(transport.address)
    name = routing_id(peer, transport, waiting)
    assert not transport.hides_message()
    peer.send(b"word")
    wait_until(lambda: is_readable(transport.descriptor), "no signal")

    def send_takes_it() -> bool:
        """libzmq lets a send look at its mailbox once in a millisecond or so."""
        assert transport.send(name, [b"x"])
        return not is_readable(transport.descriptor)

    wait_until(send_takes_it, "a send takes no signals away")
    assert waiting.wait(PATIENCE_MS) == [transport.descriptor]
    assert [one.header for one in transport.drain()] == [b"word"]
    assert waiting.wait(0) == []


def test_what_one_drain_left_is_found_by_the_next_wait(
    dealers: Callable[[str], Dealer],
    transports: tuple[Transport, Transport],
    waiting: Waiting,
) -> None:
    transport = transports[0]
    peer = dealers(transport.address)
    routing_id(peer, transport, waiting)
    for _ in range(2 * MESSAGES_PER_DRAIN_MAX + 1):
        peer.send(b"many")
    counts: list[int] = []
    while sum(counts) < 2 * MESSAGES_PER_DRAIN_MAX + 1:
        assert waiting.wait(PATIENCE_MS) == [transport.descriptor]
        counts.append(len(list(transport.drain())))
    assert max(counts) <= MESSAGES_PER_DRAIN_MAX
    assert waiting.wait(0) == []


def test_a_flooding_socket_hides_neither_the_timer_nor_the_other_socket(
    dealers: Callable[[str], Dealer],
    transports: tuple[Transport, Transport],
    waiting: Waiting,
) -> None:
    flooded, quiet = transports
    loud = dealers(flooded.address)
    routing_id(loud, flooded, waiting)
    soft = dealers(quiet.address)
    routing_id(soft, quiet, waiting)
    timer = Timer()
    timer.start()
    waiting.watch(timer.descriptor)
    for _ in range(1000):
        loud.send(b"flood")
    wait_until(lambda: is_readable(flooded.descriptor), "no flood")
    timer.arm(time.monotonic_ns() + 1_000_000)
    soft.send(b"word")
    turns = 0
    seen: set[int] = set()
    while seen < {flooded.descriptor, quiet.descriptor, timer.descriptor}:
        ready = waiting.wait(PATIENCE_MS)
        assert flooded.descriptor in ready
        seen.update(ready)
        next(iter(flooded.drain()))  # one of many: there is always more
        loud.send(b"flood")
        turns += 1
        assert turns < 100_000
    timer.close()


def test_a_monitor_wakes_for_each_connection_that_comes_or_goes(
    dealers: Callable[[str], Dealer], transports: tuple[Transport, Transport]
) -> None:
    """By its descriptor alone, which nobody looks behind."""
    transport = transports[0]
    waiting = Waiting()
    waiting.watch(transport.monitor_descriptor)
    for _ in range(50):
        dealer = dealers(transport.address)
        assert waiting.wait(PATIENCE_MS) == [transport.monitor_descriptor]
        assert transport.disconnected() == []
        dealer.close()
        ended: list[int] = []
        while not ended:
            assert waiting.wait(PATIENCE_MS) == [transport.monitor_descriptor]
            ended += transport.disconnected()
        assert len(ended) == 1
    assert waiting.wait(0) == []


# --- descriptors ---------------------------------------------------------------------------


class Endless:
    """A socket that always has a message, which its descriptor never tells."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def hides_message(self) -> bool:
        return True


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_nobody_sleeps_while_a_socket_has_a_message(pipe: tuple[int, int]) -> None:
    waiting = Waiting()
    waiting.watch_sockets([Endless(pipe[0])])
    waiting.watch(pipe[1], WRITABLE)
    assert waiting.wait(PATIENCE_MS) == [pipe[0], pipe[1]]
    os.write(pipe[1], b"x")
    assert waiting.wait(PATIENCE_MS) == [pipe[0], pipe[1]]  # named once, though ready twice


def test_a_number_that_is_used_again_is_watched_again(pipe: tuple[int, int]) -> None:
    waiting = Waiting()
    reading, writing = os.pipe()
    waiting.watch(reading)
    os.close(reading)
    os.close(writing)
    again = os.dup(pipe[0])
    assert again == reading
    os.write(pipe[1], b"x")
    assert waiting.wait(PATIENCE_MS) == [reading]
    waiting.unwatch(reading)
    assert waiting.wait(0) == []
    os.close(again)

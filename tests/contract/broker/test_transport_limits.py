"""What a transport does about peers that are too many, or that never read. (See test_shell.)"""

from __future__ import annotations

import select
import socket as sockets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from naiad.broker.transport import Transport

CONNECTIONS_MAX = 20
DEADLINE_S = 20.0


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    one = Transport(
        context,
        f"ipc://{tmp_path}/t.sock",
        frame_bytes_max=1 << 20,
        outbox_bytes_max=1 << 20,
        connections_max=CONNECTIONS_MAX,
    )
    one.start()
    yield one
    one.close()
    context.term()


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what
        select.select([], [], [], 0.005)


def raw(transport: Transport) -> sockets.socket:
    """A connection that never says anything. Raises OSError when it is not taken."""
    one = sockets.socket(sockets.AF_UNIX)
    try:
        one.connect(transport.address.removeprefix("ipc://"))
    except OSError:
        one.close()
        raise
    return one


def is_taken(transport: Transport) -> bool:
    try:
        raw(transport).close()
    except OSError:
        return False
    return True


def noted(transport: Transport, is_full: bool) -> Callable[[], bool]:
    """Whether the transport, asked for news, finds its house full or not."""

    def condition() -> bool:
        transport.disconnected()
        return transport.is_full is is_full

    return condition


def sender(transport: Transport) -> bytes:
    """The routing id of whoever sent the first message that comes."""
    found: list[bytes] = []

    def came() -> bool:
        found.extend(one.peer for one in transport.drain())
        return bool(found)

    until(came, "no message")
    return found[0]


def test_a_full_house_takes_nobody_until_some_leave(transport: Transport) -> None:
    earlier: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    earlier.linger = 0
    earlier.connect(transport.address)
    earlier.send(b"hello")
    name = sender(transport)
    with ExitStack() as crowd:
        for _ in range(CONNECTIONS_MAX - 1):
            crowd.enter_context(raw(transport))
        until(noted(transport, True), "it did not count its connections")
        assert not is_taken(transport)
        assert earlier.poll(0) == 0
        assert transport.send(name, [b"still here"])
        assert earlier.poll(int(DEADLINE_S * 1000))
    until(noted(transport, False), "it did not notice that they left")
    peer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    peer.linger = 0
    peer.connect(transport.address)
    peer.send(b"hello")
    assert sender(transport) != name
    earlier.close()
    peer.close()


def test_nothing_is_kept_of_what_a_peer_may_miss(transport: Transport) -> None:
    """Ten thousand refusals to one that never reads: nothing waits, and the next word is kept."""
    peer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    peer.linger = 0
    peer.rcvhwm = 1
    peer.connect(transport.address)
    peer.send(b"hello")
    name = sender(transport)
    for _ in range(10_000):
        transport.send_or_drop(name, [b"z" * 1000])
    assert not transport.is_waiting
    assert transport.send(name, [b"word"])
    assert transport.is_waiting
    transport.send_or_drop(name, [b"not before the word"])
    peer.close()


def test_emptying_a_large_outbox_costs_no_more_per_message_than_a_small_one(
    transport: Transport,
) -> None:
    """Looking at an outbox whose peer still does not read must not count what lies in it."""
    peer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    peer.linger = 0
    peer.rcvhwm = 1
    peer.connect(transport.address)
    peer.send(b"hello")
    name = sender(transport)
    while not transport.is_waiting:
        transport.send(name, [b"z" * 1000])
    looks = 200

    def cpu_of_looking() -> float:
        start = time.thread_time()
        for _ in range(looks):
            transport.flush()
        return time.thread_time() - start

    small = cpu_of_looking()
    for _ in range(4_000):
        assert transport.send(name, [b""])
    assert cpu_of_looking() < 20 * small + 0.01
    peer.close()

"""Brokers that hang up, restart, die, refuse, or are not there at all."""

from __future__ import annotations

import select
import time
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Code, ProtocolError, RequestError, Unavailable
from support.clients import PATIENCE_S, Broker, Connect

X = {"x": np.arange(4, dtype=np.int32)}


def test_requests_are_sent_again_when_the_connection_breaks(
    broker: Broker, connect: Connect
) -> None:
    client = connect()
    results = client.together([("echo", X), ("hang_up", X), ("echo", X)])
    for result in results:
        np.testing.assert_array_equal(result["x"], X["x"])
    infers = [event for event in client.call("seen") if event[0] == "Infer"]
    assert [attempt for *_, attempt, _ in infers] == [1, 2]
    assert client.session.requests.duplicate_answers == 0


def test_a_new_incarnation_gets_everything_unanswered(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.do("live")
    before = client.session.incarnation
    client.call("restart")
    client.infer("echo", X)
    assert client.session.incarnation != before
    hellos = [event for event in client.call("seen") if event[0] == "Hello"]
    assert [same for _, same, _ in hellos] == [False, False]


def test_nothing_but_hello_is_said_before_welcome(broker: Broker, connect: Connect) -> None:
    client = connect()
    for _ in range(5):
        client.call("hang_up")
        client.together([("echo", X)] * 20)
    assert not [event for event in client.call("seen") if event[0] == "stray"]


def test_a_killed_broker_may_come_back(run_dir: Path, connect: Connect) -> None:
    broker = Broker(run_dir).start()
    client = connect()
    client.infer("echo", X)
    broker.kill()
    (run_dir / "clients.sock").unlink(missing_ok=True)
    try:
        broker.start()
        client.infer("echo", X)
    finally:
        broker.stop()


def test_who_closes_while_the_broker_is_away_is_known_to_have_gone(
    run_dir: Path, connect: Connect
) -> None:
    """Else it would keep what that session held for as long as this process lives."""
    broker = Broker(run_dir).start()
    client = connect()
    client.infer("echo", X)
    broker.kill()
    (run_dir / "clients.sock").unlink(missing_ok=True)
    # libzmq's thread says when it has seen the end; before that the goodbye goes nowhere.
    assert select.select([client.connection.monitor_descriptor], [], [], PATIENCE_S)[0]
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 1.0
    try:
        broker.start()
        other = connect()
        deadline = time.monotonic() + 10
        while ["Bye"] not in other.call("seen"):
            assert time.monotonic() < deadline
    finally:
        broker.stop()


def test_nobody_there_is_said_in_time(run_dir: Path, connect: Connect) -> None:
    client = connect(connect_timeout_s=0.2)
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="is it running") as raised:
        client.infer("echo", X)
    assert 0.2 <= time.monotonic() - begun < 2
    assert raised.value.code is Code.CONNECTION_LOST
    broker = Broker(run_dir).start()
    try:
        client.infer("echo", X)
    finally:
        broker.stop()


def test_a_timeout_counts_also_while_nobody_is_there(run_dir: Path, connect: Connect) -> None:
    client = connect(connect_timeout_s=20)
    with pytest.raises(Unavailable, match="unreachable") as raised:
        client.infer("echo", X, timeout_us=50_000)
    assert raised.value.code is Code.TIMEOUT


def test_a_resent_request_has_only_what_is_left_of_its_timeout(
    broker: Broker, connect: Connect
) -> None:
    client = connect()
    client.infer("hang_up", X, timeout_us=60_000_000)
    infers = [event for event in client.call("seen") if event[0] == "Infer"]
    assert infers[0][-1] == 60_000_000
    assert 0 < infers[1][-1] < 60_000_000


def test_a_broker_of_another_version_is_named(run_dir: Path, connect: Connect) -> None:
    broker = Broker(run_dir).start("--wire-version", "77")
    try:
        client = connect()
        with pytest.raises(ProtocolError, match=r"version 77.*this side speaks 1") as raised:
            client.infer("echo", X)
        assert raised.value.code is Code.VERSION_MISMATCH
        with pytest.raises(ProtocolError, match="77"):
            client.do("live")
    finally:
        broker.stop()


def test_a_refusal_is_final(run_dir: Path, connect: Connect) -> None:
    broker = Broker(run_dir).start("--refuse", "permission_denied")
    try:
        with pytest.raises(RequestError, match="refuses everybody"):
            connect().infer("echo", X)
    finally:
        broker.stop()


def test_a_refusal_for_now_is_tried_again_until_time_is_up(run_dir: Path, connect: Connect) -> None:
    broker = Broker(run_dir).start("--refuse", "draining")
    try:
        with pytest.raises(Unavailable, match=r"within 0.3 s .*refuses everybody"):
            connect(connect_timeout_s=0.3).infer("echo", X)
    finally:
        broker.stop()


def test_a_call_without_reply_ends_at_its_deadline(broker: Broker, connect: Connect) -> None:
    from naiad.client.control import Operation

    client = connect()
    with pytest.raises(Unavailable, match="no reply to mute") as raised:
        client.do("call", Operation("mute", {}, None, 0.1))
    assert raised.value.code is Code.TIMEOUT

"""Callbacks of the blocking client: each runs once, in whichever thread, and none may wait."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, Future, NaiadError, RequestError
from support.clients import PATIENCE_S, Broker

X = {"x": np.arange(4, dtype=np.int32)}


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.run_dir) as client:
        client.live()
        client._blocking.pump.is_running = True  # so none is started: who leads is for tests to say
        yield client


def until(condition: threading.Event) -> None:
    assert condition.wait(PATIENCE_S)


def submit_silent(client: Client, count: int, seen: list[Future[Any]]) -> list[Future[Any]]:
    return [client.submit("silent", X, callback=seen.append) for _ in range(count)]


def test_a_callback_may_close_the_client(client: Client) -> None:
    seen: list[Future[Any]] = []
    silent = submit_silent(client, 3, seen)
    future = client.submit("echo", X, callback=lambda _: client.close())
    assert future.exception(PATIENCE_S) is None
    assert seen == silent


def test_a_callback_may_cancel_what_has_callbacks(client: Client) -> None:
    seen: list[Future[Any]] = []
    silent = submit_silent(client, 3, seen)
    future = client.submit("echo", X, callback=lambda _: [one.cancel() for one in silent])
    assert future.exception(PATIENCE_S) is None
    assert seen == silent


def test_closing_beside_a_callback_runs_each_once(client: Client) -> None:
    """Two threads come to run callbacks; the first is still in the middle of one."""
    is_inside, may_leave = threading.Event(), threading.Event()
    seen: list[Future[Any]] = []
    faults: list[BaseException] = []

    def stays(_: Future[Any]) -> None:
        is_inside.set()
        until(may_leave)

    silent = submit_silent(client, 3, seen)
    future = client.submit("echo", X, callback=stays)

    def leads() -> None:
        try:
            future.result(PATIENCE_S)
        except BaseException as fault:
            faults.append(fault)

    leader = threading.Thread(target=leads)
    leader.start()
    until(is_inside)
    client.close()
    may_leave.set()
    leader.join(PATIENCE_S)
    for one in silent:
        one.exception(PATIENCE_S)
    assert faults == []
    assert seen == silent


def test_two_threads_that_have_callbacks_to_run_run_each_once(client: Client) -> None:
    """One cancels and is held in a callback, while another leads and comes by more."""
    is_inside, may_leave = threading.Event(), threading.Event()
    seen: list[Future[Any]] = []

    def stays(future: Future[Any]) -> None:
        is_inside.set()
        until(may_leave)
        seen.append(future)

    held = client.submit("silent", X, callback=stays)
    canceller = threading.Thread(target=held.cancel)
    canceller.start()
    until(is_inside)
    echoed = [client.submit("echo", X, callback=seen.append) for _ in range(3)]
    for one in echoed:
        one.result(PATIENCE_S)
    may_leave.set()
    canceller.join(PATIENCE_S)
    assert seen == [held, *echoed]


def test_a_callback_may_not_wait_whoever_runs_it(client: Client) -> None:
    """Nobody leads here: whether it may wait must not depend on that."""
    faults: list[NaiadError] = []
    later = client.submit("silent", X)

    def waits(_: Future[Any]) -> None:
        try:
            later.result(PATIENCE_S)
        except RequestError as fault:
            faults.append(fault)

    client.submit("silent", X, callback=waits).cancel()
    assert "must not wait" in str(faults[0])
    with pytest.raises(TimeoutError):  # outside, it may
        later.result(0.01)


def test_cancelling_beside_a_leader_that_sleeps_runs_callbacks_at_once(
    client: Client, broker: Broker
) -> None:
    """Also when the server, whose word would wake the leader, is silent."""
    faults: list[NaiadError | None] = []
    other = client.submit("silent", X)
    leader = threading.Thread(target=lambda: faults.append(other.exception(PATIENCE_S)))
    leader.start()
    deadline_s = time.monotonic() + PATIENCE_S
    while not client._blocking._is_polling:
        assert time.monotonic() < deadline_s
    done = threading.Event()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        client.submit("silent", X, callback=lambda _: done.set()).cancel()
        is_done = done.wait(1.0)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    client.close()
    leader.join(PATIENCE_S)
    assert is_done
    assert len(faults) == 1


def test_an_interrupted_callback_leaves_the_others_to_who_leads(client: Client) -> None:
    """The leader had left them to the thread that is interrupted, and sleeps."""
    is_inside, may_leave, is_over = threading.Event(), threading.Event(), threading.Event()

    def is_interrupted(_: Future[Any]) -> None:
        is_inside.set()
        until(may_leave)
        raise KeyboardInterrupt

    def cancels() -> None:
        with pytest.raises(KeyboardInterrupt):
            held.cancel()

    held = client.submit("silent", X, callback=is_interrupted)
    canceller = threading.Thread(target=cancels)
    canceller.start()
    until(is_inside)
    client.submit("echo", X, callback=lambda _: is_over.set()).result(PATIENCE_S)
    other = client.submit("silent", X)
    leader = threading.Thread(target=other.exception, args=(PATIENCE_S,))
    leader.start()
    deadline_s = time.monotonic() + PATIENCE_S
    while not client._blocking._is_polling:
        assert time.monotonic() < deadline_s
    assert not is_over.is_set()
    may_leave.set()
    canceller.join(PATIENCE_S)
    is_run = is_over.wait(1.0)
    client.close()
    leader.join(PATIENCE_S)
    assert is_run


def test_driving_goes_on_while_another_thread_runs_the_callback_that_submits(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is unanswered in between, and yet there is more to come."""
    is_inside, may_leave = threading.Event(), threading.Event()

    def submits(_: Future[Any]) -> None:
        is_inside.set()
        until(may_leave)
        client.submit("echo", X)

    first = client.submit("echo", X, callback=submits)
    leader = threading.Thread(target=first.result)
    leader.start()
    until(is_inside)
    assert client._blocking.driver.session.unanswered == 0
    assert not client.drive(0.01)

    def sleeps(_: float) -> None:
        may_leave.set()
        leader.join(PATIENCE_S)

    with monkeypatch.context() as patch:
        patch.setattr("naiad.client.callbacks.time.sleep", sleeps)
        assert client.drive()
    assert client.drive()  # the second request
    assert not client.drive()


def test_a_callback_that_drives_when_nothing_is_unanswered_does_not_wait_for_itself(
    client: Client,
) -> None:
    driven: list[bool] = []
    client.submit("echo", X, callback=lambda _: driven.append(client.drive())).result(PATIENCE_S)
    assert driven == [False]

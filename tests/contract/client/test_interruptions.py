"""Ctrl-C between any two steps of the blocking client: the next request is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from naiad.client import Client
from naiad.client.control import Operation
from support.clients import PATIENCE_S, Broker
from support.interruptions import Interrupter

X = {"x": np.arange(4, dtype=np.int32)}
LARGE = {"x": np.arange(9_000)}
ACTIONS: dict[str, Callable[[Client], Any]] = {
    "call": lambda client: client.live(),
    "share": lambda client: client.infer("echo", LARGE),
    "borrow": lambda client: client.infer("lease", X)["x"].sum(),
    "submit": lambda client: client.submit("echo", X, callback=lambda _: None).result(PATIENCE_S),
    "drive": lambda client: (client.submit("echo", X), client.drive(PATIENCE_S)),
    "cancel": lambda client: client.submit("silent", X).cancel(),
    "allocate": lambda client: client.region(100_000),
    "time": lambda client: client.infer("echo", X, timeout_us=10**7),
    "reconnect": lambda client: (client.call(Operation("hang_up")), client.infer("echo", X)),
    "restart": lambda client: (client.call(Operation("restart")), client.infer("echo", LARGE)),
}
STEPS_MAX = 3000

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # in pyzmq's own finalizers
)


def answers_rightly(client: Client, number: int) -> None:
    future = client.submit("echo", {"x": np.array([number])})
    assert future.result(PATIENCE_S)["x"].tolist() == [number]


def interrupted_everywhere(attempt: Callable[[int], str], stride: int = 1) -> int:
    """Until one is not interrupted any more: how many were."""
    for step in range(0, STEPS_MAX, stride):
        if not attempt(step):
            return step
    raise AssertionError(f"there is no end after {STEPS_MAX} steps")


def test_a_request_of_a_connected_client(broker: Broker) -> None:
    with Client(broker.run_dir) as client:
        client.infer("echo", X)

        def attempt(step: int) -> str:
            interrupter = Interrupter(step)
            interrupter.call(lambda: client.infer("echo", X))
            try:
                answers_rightly(client, step)
            except Exception as fault:
                raise AssertionError(f"after {interrupter.where}: {fault!r}") from fault
            return interrupter.where

        assert interrupted_everywhere(attempt) > 50
        seen = client.call(Operation("seen"))
        assert [one for one in seen if one[0] == "stray"] == []
        assert not client._blocking.driver.session.unanswered
        client._blocking.driver.session.requests.check_invariants()


def test_the_first_request_of_a_client(broker: Broker) -> None:
    def attempt(step: int) -> str:
        interrupter = Interrupter(step)
        with Client(broker.run_dir) as client:
            interrupter.call(lambda: client.infer("echo", X))
            try:
                answers_rightly(client, step)
            except Exception as fault:
                raise AssertionError(f"after {interrupter.where}: {fault!r}") from fault
        return interrupter.where

    assert interrupted_everywhere(attempt, stride=3) > 50


def test_other_threads_go_on(broker: Broker) -> None:
    """The interrupted thread may have led all the others, and may never come back."""
    with Client(broker.run_dir) as client:
        client.infer("echo", X)

        def attempt(step: int) -> str:
            held = client.submit("silent", X)
            interrupter = Interrupter(step)
            seen: list[Any] = []
            waits = threading.Thread(target=lambda: seen.append(held.result(PATIENCE_S)))
            waits.start()
            interrupter.call(lambda: client.infer("echo", X))
            other = threading.Thread(target=client.call, args=(Operation("answer"),))
            other.start()
            waits.join(PATIENCE_S)
            other.join(PATIENCE_S)
            assert len(seen) == 1, interrupter.where
            return interrupter.where

        assert interrupted_everywhere(attempt, stride=5) > 50


@pytest.mark.parametrize("action", ACTIONS)
def test_anything_else(broker: Broker, action: str) -> None:
    act = ACTIONS[action]
    with Client(broker.run_dir) as client:
        client.infer("echo", LARGE)

        def attempt(step: int) -> str:
            interrupter = Interrupter(step)
            interrupter.call(lambda: act(client))
            try:
                answers_rightly(client, step)
                np.testing.assert_array_equal(client.infer("echo", LARGE)["x"], LARGE["x"])
            except Exception as fault:
                raise AssertionError(f"after {interrupter.where}: {fault!r}") from fault
            return interrupter.where

        interrupted_everywhere(attempt, stride=13)
        client._blocking.driver.session.requests.check_invariants()
        seen = client.call(Operation("seen"))
        assert [one for one in seen if one[0] == "stray"] == []

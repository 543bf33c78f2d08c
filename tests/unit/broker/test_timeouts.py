"""Timeouts of queued requests: on time, by the rules of REJECT and DELAY."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import (
    CLIENT,
    MS,
    US,
    Bench,
    config,
    parameters,
    queue_policy,
)


def answered_after_us(fields: dict[str, Any], timeout_us: int, wait_us: int = 100_000) -> float:
    """When a request that waits behind another is answered, in µs; -1 when it is not."""
    bench = Bench()
    bench.served(config(**fields))
    rows = {"rows": 1} if "dynamic_batching" in fields else {}
    bench.ask(1, **rows)
    asked_ns = bench.now_ns
    bench.ask(2, timeout_us=timeout_us, **rows)
    until_ns = asked_ns + wait_us * US
    while bench.scheduler.deadline_ns() <= until_ns and (CLIENT, 2) not in bench.answers:
        bench.wait(bench.scheduler.deadline_ns() - bench.now_ns)
    if (CLIENT, 2) not in bench.answers:
        return -1
    assert bench.error(2) == (Code.TIMEOUT, "Request timeout expired")
    assert bench.order == [("answer", 2), ("released", 2)]
    assert bench.model().statistics.failures == {Code.TIMEOUT: 1}
    return (bench.now_ns - asked_ns) / US


REJECT = {"timeout_action": "REJECT"}


@pytest.mark.parametrize(
    ("fields", "timeout_us", "expected_us"),
    [
        (config(), 0, -1),
        (config(), 700, 700),
        (config(**parameters(queue_timeout_us=900)), 0, 900),
        (config(**parameters(queue_timeout_us=900)), 700, 700),
        (config(**parameters(queue_timeout_us=900)), 1_500, 900),
        (config(**queue_policy()), 700, 700),
        (config(**queue_policy(default_timeout_microseconds=900)), 0, 900),
        (config(**queue_policy(default_timeout_microseconds=900)), 700, 900),
        (
            config(**queue_policy(default_timeout_microseconds=900, allow_timeout_override=True)),
            700,
            700,
        ),
        (
            config(**queue_policy(default_timeout_microseconds=900, allow_timeout_override=True)),
            1_500,
            900,
        ),
    ],
)
def test_a_timeout_is_answered_at_its_moment(
    fields: dict[str, Any], timeout_us: int, expected_us: float
) -> None:
    """As Triton, but for one thing: naiad heeds a request's own timeout without a default too."""
    assert answered_after_us(fields, timeout_us) == expected_us


def test_a_delay_policy_moves_behind_its_level_and_never_rejects() -> None:
    bench = Bench()
    fields = queue_policy(timeout_action="DELAY", default_timeout_microseconds=1000)
    (slot,) = bench.served(config(**fields))
    bench.ask(1, 2, 3, rows=1)
    bench.wait(5 * MS)
    bench.ask(4, rows=1)
    for _ in range(4):
        bench.finish(slot)
    assert [found for found in bench.order if found[0] == "answer"] == [
        ("answer", 1), ("answer", 4), ("answer", 2), ("answer", 3),
    ]  # fmt: skip
    assert all(bench.is_answered(ident) for ident in (1, 2, 3, 4))


def test_a_suspect_under_a_delay_policy_is_not_rejected_either() -> None:
    bench = Bench()
    fields = queue_policy(timeout_action="DELAY", default_timeout_microseconds=1000)
    (slot,) = bench.served(config(**fields))
    bench.ask(1, rows=1)
    bench.dies(slot, executing=bench.batches[slot][0].id)
    bench.wait(5 * MS)
    slot = bench.worker()
    bench.loaded(slot)
    bench.finish(slot)
    assert bench.is_answered(1)


def test_an_executing_request_is_not_timed_out() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, timeout_us=1_000)
    bench.wait(50 * MS)
    assert bench.answers == {}
    bench.finish(slot)
    assert bench.is_answered(1)


def test_an_early_request_is_timed_out_now_and_released_when_its_batch_ended() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.finish(slot, took_ns=5 * MS)
    bench.ask(2)
    bench.ask(3, timeout_us=6_000)
    bench.wait(5_500 * US)
    assert bench.sent(slot) == [[2], [3]]
    bench.wait(1 * MS)
    assert bench.error(3)[0] == Code.TIMEOUT
    assert bench.released[CLIENT] == []
    assert m.Abandon(((CLIENT, 3),)) in bench.told[slot]
    bench.finish(slot)
    bench.finish(slot)
    assert bench.released[CLIENT] == [3]


def test_the_rest_of_the_time_travels_with_the_batch() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.ask(2, timeout_us=10_000)
    bench.wait(3 * MS)
    bench.finish(slot)
    assert bench.batches[slot][0].requests[0].remaining_us == 7_000

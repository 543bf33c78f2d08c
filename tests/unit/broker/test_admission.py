"""Who is let in: budgets, queue limits, timeouts, models and versions; all faults are answers."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import (
    CLIENT,
    MS,
    OTHER,
    Bench,
    batching,
    config,
    instances,
    parameters,
    queue_policy,
)


def refused(bench: Bench) -> list[int]:
    return [ident for (_, ident), found in bench.answers.items() if found[0].error]


# --- queue limits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limited", [queue_policy(max_queue_size=2), parameters(max_queue_size=2)],
    ids=["of the dynamic batcher", "of naiad, without a batcher"],
)  # fmt: skip
@pytest.mark.parametrize("in_one_message", [True, False])
def test_exactly_instances_plus_limit_are_accepted_of_a_burst(
    limited: dict[str, Any], in_one_message: bool
) -> None:
    """Neither one more nor one less."""
    bench = Bench()
    bench.served(config(**limited, **instances(2)))
    rows = {"rows": 1} if "dynamic_batching" in limited else {}
    if in_one_message:
        bench.ask(*range(10), **rows)
    else:
        for ident in range(10):
            bench.ask(ident, **rows)
    assert refused(bench) == [4, 5, 6, 7, 8, 9]
    code, text = bench.error(9)
    assert code == Code.QUEUE_FULL
    assert text.startswith("Exceeds maximum queue size")
    assert bench.model().statistics.failures == {Code.QUEUE_FULL: 6}


def test_an_early_batch_still_counts_as_queued() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**queue_policy(max_queue_size=2)))
    bench.ask(1, rows=1)
    bench.finish(slot, took_ns=5 * MS)
    bench.ask(2, rows=1)
    bench.ask(3, rows=1)
    bench.wait(5 * MS)
    assert bench.sent(slot) == [[2], [3]], "the next batch was sent before the running one ended"
    bench.ask(4, 5, rows=1)
    assert refused(bench) == [5]
    bench.finish(slot)
    bench.ask(6, 7, rows=1)
    assert refused(bench) == [5, 7]


def test_each_priority_level_has_its_own_limit() -> None:
    bench = Bench()
    fields = batching(
        1, priority_levels=3, default_priority_level=2,
        default_queue_policy={"max_queue_size": 1},
        priority_queue_policy={"1": {"max_queue_size": 2}},
    )  # fmt: skip
    (slot,) = bench.served(config(**fields))
    bench.ask(1, rows=1, priority=1)
    bench.ask(11, 12, 13, rows=1, priority=1)
    bench.ask(21, 22, rows=1, priority=2)
    bench.ask(31, 32, rows=1, priority=3)
    assert refused(bench) == [13, 22, 32]
    assert bench.sent(slot) == [[1]]


def test_requests_moved_behind_by_a_delay_policy_count_for_their_level() -> None:
    bench = Bench()
    bench.served(
        config(
            **queue_policy(
                max_queue_size=2, timeout_action="DELAY", default_timeout_microseconds=1000
            )
        )
    )
    bench.ask(1, 2, 3, rows=1)
    bench.wait(2 * MS)
    bench.ask(4, rows=1)
    assert refused(bench) == [4]


# --- budgets -------------------------------------------------------------------------------------


def test_requests_in_flight_are_bounded_per_client() -> None:
    bench = Bench(limits=Limits(session_requests_max=3))
    (slot,) = bench.served(config())
    bench.ask(1, 2, 3, 4)
    assert bench.error(4)[0] == Code.BUDGET_EXCEEDED
    bench.ask(5, client=OTHER)
    assert (OTHER, 5) not in bench.answers
    bench.finish(slot)
    bench.ask(6)
    assert (CLIENT, 6) not in bench.answers


def test_inline_bytes_in_flight_are_bounded_per_client_and_given_back() -> None:
    bench = Bench(limits=Limits(session_bytes_max=10))
    (slot,) = bench.served(config())
    bench.ask(1, 2, 3)
    code, text = bench.error(3)
    assert code == Code.BUDGET_EXCEEDED
    assert "12 inline bytes in flight, at most 10" in text
    bench.do(e.CancelAsked(CLIENT, (2,)))
    bench.ask(4)
    bench.finish(slot)
    bench.finish(slot)
    assert bench.world.sessions[CLIENT].bytes == 0


def test_sessions_are_bounded() -> None:
    bench = Bench(limits=Limits(sessions_max=1))
    bench.client()
    actions = bench.do(e.SessionOpened(OTHER, "client", 1, ()))
    (closed,) = [one for one in actions if type(one) is e.CloseSession]
    assert (closed.session, closed.error.code) == (OTHER, Code.BUDGET_EXCEEDED)


# --- models, versions, what is not there yet -----------------------------------------------------


def test_the_users_own_id_stands_before_the_text() -> None:
    bench = Bench()
    bench.served(config())
    bench.ask(1, label="mine", shape=(5,))
    assert bench.error(1)[1].startswith("[request id: mine] unexpected shape")


@pytest.mark.parametrize(
    ("model", "version", "code", "text"),
    [
        ("x", -1, Code.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        ("m", 7, Code.NOT_FOUND, "Request for unknown model: 'm' version 7 is not found"),
    ],
)
def test_unknown_models_and_versions(model: str, version: int, code: Code, text: str) -> None:
    bench = Bench()
    bench.served(config())
    bench.ask(1, model=model, version=version)
    assert bench.error(1) == (code, text)


def test_a_model_that_loads_has_no_available_version_yet_and_that_may_change() -> None:
    bench = Bench()
    bench.load(config())
    bench.ask(1)
    bench.ask(2, version=1)
    code, text = bench.error(1)
    assert code == Code.NOT_FOUND
    assert "has no available versions (version 1 is LOADING)" in text
    assert bench.answers[CLIENT, 1][0].error[2], "retryable"  # type: ignore[index]
    assert bench.error(2)[0] == Code.NOT_READY
    assert "version 1 is not at ready state" in bench.error(2)[1]


def test_without_a_version_the_highest_ready_one_runs() -> None:
    bench = Bench()
    bench.load(config(version_policy={"all": {}}), versions=(1, 2))
    for _ in range(2):
        bench.loaded(bench.worker())
    bench.ask(1)
    bench.ask(2, version=1)
    newest, first = (bench.worker_of(bench.model(version=version)) for version in (2, 1))
    assert (bench.sent(newest), bench.sent(first)) == ([[1]], [[2]])


def test_what_is_not_served_yet_is_refused_by_name() -> None:
    bench = Bench()
    bench.served(config())
    bench.ask(1, sequence=m.Sequence(1, True, False))
    code, text = bench.error(1)
    assert code == Code.UNSUPPORTED
    assert "sequence" in text

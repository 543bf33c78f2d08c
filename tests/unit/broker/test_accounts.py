"""Budgets of users: what one accounting key of a session may have in flight."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, MS, OTHER, Bench, config


def accounts(bench: Bench, client: int = CLIENT) -> int:
    """Users of whom something is kept."""
    return len(bench.world.sessions[client].accounts)


def limited(**limits: int) -> Bench:
    bench = Bench(limits=Limits(**limits))
    bench.served(config())
    return bench


def slot_of(bench: Bench) -> int:
    return bench.worker_of(bench.model())


def test_a_user_may_have_so_many_requests_in_flight_and_others_theirs() -> None:
    bench = limited(user_requests_max=2)
    bench.ask(1, 2, 3, accounting_key="greedy")
    bench.ask(4, accounting_key="polite")
    bench.ask(5, 6, 7)
    bench.ask(3, client=OTHER, accounting_key="greedy")
    code, text = bench.error(3)
    assert code == Code.BUDGET_EXCEEDED
    assert "2 requests of this accounting key are in flight, at most 2" in text
    assert "--user-requests-max); wait for answers" in text
    assert "greedy" not in text
    assert set(bench.answers) == {(CLIENT, 3)}


def test_bytes_count_inputs_wherever_they_are_and_places_of_outputs() -> None:
    bench = limited(user_bytes_max=20)
    bench.client()
    bench.do(e.RegionOffered(CLIENT, 1, m.Region(7, "/r", 1, 2, 4096), None))
    there = m.Tensor("X", "UINT8", (4,), int(m.Place.REGION), 7, 0, 4)
    bench.ask(1, accounting_key="a")
    bench.ask(2, accounting_key="a", inputs=(there,))
    bench.ask(3, accounting_key="a", outputs=(m.OutputRequest("Y", m.Place.REGION, 7, 8, 8),))
    bench.ask(4, accounting_key="a")
    code, text = bench.error(4)
    assert code == Code.BUDGET_EXCEEDED
    assert "20 bytes of this accounting key are in flight, 4 more are over the limit of 20" in text
    bench.ask(5, accounting_key="b")
    assert set(bench.answers) == {(CLIENT, 4)}


def test_one_request_over_the_limit_can_never_be_sent() -> None:
    bench = limited(user_bytes_max=3)
    bench.ask(1, accounting_key="a")
    (answer,) = bench.answers[CLIENT, 1]
    assert answer.error is not None
    assert answer.error[0] == Code.BUDGET_EXCEEDED
    assert answer.error[2] is False, "trying again does not help"
    assert "this request has 4 bytes of tensors, at most 3" in answer.error[1]
    assert accounts(bench) == 0


def test_without_limits_everything_is_taken() -> None:
    bench = limited(user_requests_max=0, user_bytes_max=0)
    bench.ask(*range(1, 60), accounting_key="a")
    assert bench.answers == {}


@pytest.mark.parametrize("end", ["answer", "error", "cancel", "timeout", "cancel running", "gone"])
def test_what_ends_is_given_back_and_nothing_is_kept(end: str) -> None:
    bench = limited(user_requests_max=2)
    slot = slot_of(bench)
    bench.ask(1, 2, accounting_key="a", timeout_us=50_000)
    assert accounts(bench) == 1
    if end in ("answer", "error"):
        error = ("model_error", "no", False) if end == "error" else None
        bench.finish(slot, error=error)
        bench.finish(slot, error=error)
    elif end == "cancel":
        bench.cancel(2)
        bench.finish(slot)
    elif end == "timeout":
        bench.finish(slot, took_ns=1)
        bench.wait(60 * MS)
        bench.finish(slot)
    elif end == "cancel running":
        bench.cancel(1)
        bench.cancel(2)
    else:
        session = bench.world.sessions[CLIENT]
        bench.do(e.SessionEnded(CLIENT))
        assert len(session.accounts) == 0
        return
    assert accounts(bench) == 0
    bench.ask(3, 4, accounting_key="a")
    assert bench.world.sessions[CLIENT].jobs.keys() == {3, 4}


def test_a_dead_workers_requests_stay_charged() -> None:
    bench = limited(user_requests_max=1)
    bench.ask(1, accounting_key="a")
    bench.dies(slot_of(bench))
    bench.ask(2, accounting_key="a")
    assert bench.error(2)[0] == Code.BUDGET_EXCEEDED


def test_after_a_restart_nothing_that_was_in_flight_is_refused() -> None:
    bench = limited(user_requests_max=2)
    bench.ask(1, 2, accounting_key="a")
    again = bench.restarted(Limits(user_requests_max=2))
    again.client()
    again.ask(3, 4, accounting_key="a")
    again.ask(1, 2, attempt=2, accounting_key="a")
    again.dies(slot_of(bench))  # nobody has what it had
    assert again.world.sessions[CLIENT].jobs.keys() == {1, 2, 3, 4}
    again.ask(5, accounting_key="a")
    assert again.error(5)[0] == Code.BUDGET_EXCEEDED


@pytest.mark.parametrize("fields", [{"accounting_key": "secret"}, {"fairness_key": "secret"}])
def test_a_key_is_told_to_nobody(fields: dict[str, Any]) -> None:
    bench = limited(user_requests_max=1)
    bench.ask(1, 2, **fields)
    shown = [bench.logs, bench.answers, bench.control("status"), bench.scheduler.snapshot()]
    sent = bench.batches[slot_of(bench)]
    assert sent
    assert "secret" not in repr([*shown, *sent])

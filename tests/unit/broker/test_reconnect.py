"""A client on a new connection to the same broker: nothing runs twice, nothing is lost."""

from __future__ import annotations

import pytest

from naiad.broker.core import events as e
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, MS, Bench, S, config
from support.simulated_restart import back, crashed, held, resend, results

CANCELLED = (str(Code.CANCELLED), "cancelled before it was executed", False)


def test_a_request_sent_again_on_a_new_connection_is_not_executed_again() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.SessionLost(CLIENT))
    bench.client()
    resend(bench, 1)
    assert bench.sent(slot) == [[1]]
    bench.finish(slot)
    assert bench.is_answered(1)


def test_an_answer_lost_with_the_connection_means_running_again() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.finish(slot)
    bench.do(e.SessionLost(CLIENT))
    bench.client()
    resend(bench, 1)
    assert bench.sent(slot) == [[1]]


def test_answers_made_while_the_connection_is_away_are_kept() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.SessionLost(CLIENT))
    bench.finish(slot)
    assert bench.answers == {}
    bench.client()
    assert bench.is_answered(1)


def test_an_error_answer_lost_with_the_connection_is_given_again_and_released_later() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.CancelAsked(CLIENT, (1,)))
    bench.do(e.SessionLost(CLIENT))
    bench.client()
    bench.answers.clear()
    resend(bench, 1)
    assert bench.error(1)[0] == Code.CANCELLED
    bench.finish(slot)
    assert bench.released[CLIENT] == [1]


def test_a_session_that_ends_and_returns_in_one_moment_gets_its_answers() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    opened = e.SessionOpened(CLIENT, "client", 1, ())
    again = e.RequestsArrived(CLIENT, (bench.request(3, shape=(5,)),), [bytes(5)])
    bench.do(e.SessionEnded(CLIENT), opened, again)
    assert bench.error(3)[0] == Code.INVALID_ARGUMENT
    assert bench.sent(slot) == [[1]]


@pytest.mark.parametrize("ident", [1, 2])
def test_an_id_used_twice_closes_the_session(ident: int) -> None:
    bench = Bench()
    bench.served(config())
    bench.ask(1, 2)
    actions = bench.do(e.RequestsArrived(CLIENT, (bench.request(ident),), [bytes(4)]))
    (closed,) = [one for one in actions if type(one) is e.CloseSession]
    assert closed.error.code is Code.ALREADY_EXISTS
    counters = bench.world.counters
    assert (counters.protocol_errors, counters.dropped_sessions) == (1, 1)


def test_what_is_answered_on_the_new_connection_is_not_run_again_when_it_is_sent_again() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    bench.do(e.SessionLost(CLIENT))
    bench.finish(slot)
    bench.client()
    bench.finish(slot)
    assert bench.is_answered(1)
    assert bench.is_answered(2)
    resend(bench, 1, 2)
    assert bench.sent(slot) == []
    assert bench.is_answered(1)
    assert bench.is_answered(2)


def test_a_timeout_while_the_connection_was_away_is_told_with_its_release() -> None:
    bench = Bench()
    bench.served(config())
    bench.ask(1, 2, timeout_us=10_000)
    bench.do(e.SessionLost(CLIENT))
    bench.wait(20 * MS)
    assert bench.order == []
    bench.client()
    assert bench.order == [("answer", 2), ("released", 2)]
    resend(bench, 2)
    assert bench.error(2)[0] == Code.TIMEOUT


def test_a_release_while_the_connection_was_away_is_told_and_its_answer_again_if_asked() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.do(e.CancelAsked(CLIENT, (1,)))
    bench.do(e.SessionLost(CLIENT))
    bench.finish(slot)
    bench.order.clear()
    bench.client()
    assert bench.order == [("released", 1)]
    resend(bench, 1)
    assert bench.order == [("released", 1), ("answer", 1), ("released", 1)]
    assert bench.sent(slot) == []


def test_an_answer_made_in_the_same_turn_as_the_return_counts_as_answered() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    (batch,) = bench.batches[slot]
    bench.do(e.SessionLost(CLIENT))
    tensor = m.Tensor("Y", "UINT8", (4,), int(m.Place.INLINE), 0, 0, 4)
    message = m.Results(batch.id, (m.BatchResult(None, (tensor,)),), m.Durations(0, 1, 0), 0, ())
    finished = e.BatchFinished(slot, message, [bytes(4)])
    actions = bench.do(finished, e.SessionOpened(CLIENT, "client", 1, ()))
    kinds = [type(one) for one in actions]
    assert kinds.index(e.TellSession) < kinds.index(e.SendAnswers)
    bench.batches.clear()
    resend(bench, 1)
    assert bench.sent(slot) == []


def test_a_model_that_could_not_be_had_is_tried_again_by_the_next_broker() -> None:
    bench = Bench()
    bench.load(config())
    bench.loaded(bench.worker(), (str(Code.LOAD_FAILED), "out of memory", False))
    bench = bench.restarted()
    assert str(bench.model().state) == "LOADING"


def test_an_unloaded_model_stays_away() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.control("unload", model="m")
    bench.dies(slot)
    assert "m" not in bench.restarted().world.models


def test_a_request_that_can_no_longer_be_admitted_is_refused_after_its_copy_has_ended() -> None:
    bench, slot, instance, (batch,) = crashed(None, 1)
    back(bench, slot, instance, held(batch, 1))
    bench.ask(1, attempt=2, model="gone")
    assert bench.answers == {}
    results(bench, slot, batch)
    assert bench.error(1)[0] == Code.NOT_FOUND


def test_a_draining_broker_still_gives_the_results_of_the_one_before() -> None:
    bench, slot, instance, (batch,) = crashed(None, 1)
    bench.do(e.DrainAsked(bench.now_ns + 60 * S))
    back(bench, slot, instance, held(batch, 1))
    resend(bench, 1)
    results(bench, slot, batch)
    assert bench.is_answered(1)
    bench.dies(slot)
    assert bench.quit_code == 0

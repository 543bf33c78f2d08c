"""Requests that come before the model repository has been read."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, Bench


def test_until_the_repository_is_read_a_model_is_not_unknown_but_not_ready() -> None:
    bench = Bench()
    actions = bench.scheduler.start(None, None, bench.now_ns)
    (scan,) = [one for one in actions if type(one) is e.ScanRepository]
    bench.ask(1)
    (answer,) = bench.answers[CLIENT, 1]
    assert answer.error is not None
    code, text, retryable = answer.error
    assert (code, retryable) == (Code.NOT_READY, True)
    assert "reads its model repository" in text
    bench.do(e.RepositoryScanned(scan.token, (), None))
    bench.ask(2)
    assert bench.error(2)[0] == Code.NOT_FOUND


def test_a_server_that_loads_nothing_by_itself_knows_at_once() -> None:
    bench = Bench()
    bench.ask(1)
    assert bench.error(1)[0] == Code.NOT_FOUND
    bench.ask_control("load", model="m")
    bench.ask(2)
    assert bench.error(2)[0] == Code.NOT_FOUND, "a load of somebody else's changes nothing"

"""Requests that come before the model repository has been read."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.broker.core.models import ModelState
from naiad.protocol.errors import Code
from support.simulated_bench import CLIENT, Bench, config


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


def test_when_nobody_could_read_the_repository_it_is_asked_for_again() -> None:
    bench = Bench()
    actions = bench.scheduler.start(None, None, bench.now_ns)
    (scan,) = [one for one in actions if type(one) is e.ScanRepository]
    bench.do(e.RepositoryScanned(scan.token, (), "it hangs.", is_lost=True))
    assert "model repository: it hangs. Trying again in 60 s." in bench.logs
    bench.ask(1)
    assert bench.error(1)[0] == Code.NOT_READY, "it is still not known what is served"
    assert bench.scans == []
    bench.wait(bench.world.limits.retry_last_ns)
    assert bench.scans == [scan]
    bench.scanned(config())
    assert bench.model().state is ModelState.LOADING


def test_a_server_that_loads_nothing_by_itself_knows_at_once() -> None:
    bench = Bench()
    bench.ask(1)
    assert bench.error(1)[0] == Code.NOT_FOUND
    bench.ask_control("load", model="m")
    bench.ask(2)
    assert bench.error(2)[0] == Code.NOT_FOUND, "a load of somebody else's changes nothing"

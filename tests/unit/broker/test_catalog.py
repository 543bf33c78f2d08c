"""Models load, reload and unload: make before break, and a failed load changes nothing served."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.models import ModelState
from naiad.broker.core.world import Limits
from naiad.protocol.errors import Code, NaiadError, Unavailable
from support.simulated_bench import (
    CLIENT,
    Bench,
    S,
    config,
    instances,
    parameters,
)

LOAD_ERROR = (str(Code.LOAD_FAILED), "initialize raised", False)


def reply(bench: Bench, call: int) -> NaiadError | None:
    error, _ = bench.replies[CLIENT, call]
    return error


def reloading(**fields: Any) -> tuple[Bench, int, int, int]:
    """A served model whose next edition loads on a second worker: bench, old, new, call."""
    bench = Bench()
    (old,) = bench.served(config())
    new = bench.worker()
    call = bench.load(config(**fields), edition="1")
    return bench, old, new, call


# --- loads ---------------------------------------------------------------------------------------


def test_a_load_is_answered_when_every_instance_serves() -> None:
    bench = Bench()
    call = bench.load(config(**instances(2)))
    first, second = bench.worker(), bench.worker()
    bench.loaded(first)
    assert (CLIENT, call) not in bench.replies
    assert bench.model().is_ready
    bench.loaded(second)
    assert reply(bench, call) is None


def test_a_load_short_of_slots_is_answered_after_some_patience() -> None:
    bench = Bench()
    call = bench.load(config(**instances(2)))
    bench.loaded(bench.worker())
    bench.wait(4 * S)
    assert (CLIENT, call) not in bench.replies
    bench.wait(2 * S)
    assert reply(bench, call) is None
    assert "waiting for 1 slots on cpu" in bench.control("status")["models"][0]["reason"]


def test_the_same_fingerprint_is_no_reload() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    call = bench.load(config())
    assert reply(bench, call) is None
    assert not bench.is_stopped(slot)
    assert bench.wanted[-1].slots == 2


def test_a_reload_serves_the_old_until_the_new_is_there_then_drains_it() -> None:
    bench, old, new, call = reloading()
    bench.ask(1)
    assert bench.sent(old) == [[1]]
    assert (CLIENT, call) not in bench.replies
    bench.loaded(new)
    assert reply(bench, call) is None
    bench.ask(2)
    assert bench.sent(new) == [[2]]
    assert not bench.is_stopped(old), "it is still executing"
    bench.finish(old)
    assert bench.is_answered(1)
    assert bench.is_stopped(old)


def test_queued_requests_go_to_the_new_generation_where_they_fit() -> None:
    bench, old, new, _ = reloading()
    bench.ask(1, 2, 3)
    bench.loaded(new)
    assert bench.sent(new) == [[2]]
    bench.finish(new)
    assert bench.sent(new) == [[3]]
    bench.finish(old)
    assert bench.is_answered(1)


def test_queued_requests_that_do_not_fit_are_finished_by_the_old_generation() -> None:
    wider = {"input": [{"name": "X", "data_type": "TYPE_UINT8", "dims": [5]}]}
    bench, old, new, _ = reloading(**wider)
    bench.ask(1, 2)
    bench.loaded(new)
    assert bench.sent(new) == []
    bench.finish(old)
    assert bench.sent(old) == [[2]]
    bench.finish(old)
    assert bench.is_stopped(old)


def test_a_failed_reload_leaves_the_old_serving_and_says_so() -> None:
    bench, old, new, call = reloading()
    bench.loaded(new, LOAD_ERROR)
    error = reply(bench, call)
    assert error is not None
    assert error.code is Code.LOAD_FAILED
    bench.dies(new)
    bench.ask(1)
    assert bench.sent(old) == [[1]]
    assert bench.control("ready")["ready"]
    assert "initialize raised" in bench.index()[0]["reason"]
    assert bench.world.retiring == []
    assert len(bench.world.instances) == 1


def test_one_failing_instance_of_a_reload_ends_the_others_and_nothing_is_left() -> None:
    bench = Bench()
    (old,) = bench.served(config())
    new = [bench.worker(), bench.worker()]
    call = bench.load(config(**instances(2)), edition="1")
    bench.loaded(new[0], LOAD_ERROR)
    assert bench.killed == [new[1]]
    bench.dies(new[0])
    bench.dies(new[1], ordered=True)
    assert reply(bench, call) is not None
    assert bench.world.retiring == []
    assert len(bench.world.instances) == 1
    assert not bench.is_stopped(old)


def test_a_reload_while_the_only_worker_is_dead_still_lets_requests_wait() -> None:
    bench = Bench()
    (old,) = bench.served(config())
    bench.dies(old)
    bench.load(config(), edition="1")
    bench.ask(1)
    assert bench.answers == {}
    for _ in range(2):
        bench.loaded(bench.worker())
    (slot,) = [slot for slot in bench.batches if bench.batches[slot]]
    bench.finish(slot)
    assert bench.is_answered(1)


def test_a_restarted_old_worker_does_not_end_the_reload_early() -> None:
    bench, old, _, call = reloading()
    bench.dies(old)
    bench.loaded(bench.worker())
    assert (CLIENT, call) not in bench.replies


def test_a_newer_load_overtakes_an_older_one() -> None:
    bench, _, new, call = reloading()
    newest = bench.load(config(), edition="2")
    error = reply(bench, call)
    assert error is not None
    assert "Newer operation" in error.message
    assert bench.is_stopped(new)
    bench.loaded(bench.worker())
    assert reply(bench, newest) is None
    assert bench.model().directory == "/models/m/2"


def test_versions_come_and_go_with_the_policy() -> None:
    bench = Bench()
    bench.load(config(), versions=(1,))
    bench.loaded(bench.worker())
    bench.load(config(), versions=(2,), edition="1")
    bench.loaded(bench.worker())
    assert list(bench.world.models["m"].versions) == [2]


@pytest.mark.parametrize(
    ("extra", "versions", "text"),
    [
        (
            {"faults": ["config.pbtxt:3:1: expected a name"], "config": None},
            (1,),
            "3:1: expected a",
        ),
        ({}, (), "at least one version must be available under the version policy"),
    ],
)
def test_a_refused_config_changes_nothing_served(
    extra: dict[str, object], versions: tuple[int, ...], text: str
) -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    call = bench.ask_control("load", model="m")
    bench.scanned(config(), versions=versions, edition="1", **extra)
    error = reply(bench, call)
    assert error is not None
    assert text in error.message
    bench.ask(1)
    assert bench.sent(slot) == [[1]]


def test_a_model_that_is_not_there_fails_its_load_by_name() -> None:
    bench = Bench()
    call = bench.ask_control("load", model="gone")
    entry = {"name": "gone", "missing": "no directory of that name"}
    bench.do(e.RepositoryScanned(bench.scans.pop().token, (entry,), None))
    error = reply(bench, call)
    assert error is not None
    assert "failed to load 'gone'" in error.message


def test_a_load_that_nobody_could_look_at_fails_and_changes_nothing_served() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    lost, other = (bench.ask_control("load", model=name) for name in ("m", "other"))
    bench.do(e.RepositoryScanned(bench.scans.pop(0).token, (), "it hangs.", is_lost=True))
    error = reply(bench, lost)
    assert isinstance(error, Unavailable)
    assert error.message == "failed to load 'm': it hangs."
    assert bench.world.models["m"].failure == f"last load failed: {error.message}"
    bench.ask(1)
    assert bench.sent(slot) == [[1]]
    bench.scanned(config("other"))
    assert bench.model("other").state is ModelState.LOADING
    assert (CLIENT, other) not in bench.replies


def test_without_explicit_control_loads_are_refused() -> None:
    bench = Bench(explicit=False)
    for operation in ("load", "unload"):
        with pytest.raises(Unavailable, match="--control-mode explicit"):
            bench.control(operation, model="m")


# --- unload --------------------------------------------------------------------------------------


def test_unload_drains_then_stops_then_is_unavailable() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1, 2)
    bench.control("unload", model="m")
    bench.ask(3)
    assert bench.error(3)[0] == Code.NOT_FOUND
    assert not bench.is_stopped(slot)
    bench.finish(slot)
    bench.finish(slot)
    assert bench.is_answered(2)
    assert bench.is_stopped(slot)
    assert str(bench.model().state) == "UNLOADING"
    bench.dies(slot)
    assert (str(bench.model().state), bench.model().reason) == ("UNAVAILABLE", "unloaded")
    assert bench.world.instances == {}


def test_unload_of_an_unknown_model_succeeds() -> None:
    Bench().control("unload", model="never")


def test_unload_during_a_load_that_fails_leaves_nothing() -> None:
    bench = Bench()
    call = bench.load(config())
    slot = bench.worker()
    bench.control("unload", model="m")
    assert reply(bench, call) is not None
    bench.loaded(slot, LOAD_ERROR)
    bench.dies(slot)
    assert bench.world.retiring == []
    assert bench.world.instances == {}


def test_requests_of_an_unloading_model_are_answered_when_its_last_worker_dies_for_good() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=1)))
    bench.ask(1, 2)
    bench.control("unload", model="m")
    bench.dies(slot)
    assert bench.error(1)[0] == Code.NOT_READY
    assert bench.error(2)[0] == Code.NOT_READY
    assert bench.world.retiring == []


def test_a_worker_that_does_not_stop_is_killed() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.control("unload", model="m")
    bench.wait(bench.world.limits.stop_grace_ns + 1)
    assert bench.killed == [slot]


def test_load_after_unload_serves_again() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.control("unload", model="m")
    call = bench.load(config())
    bench.loaded(bench.worker())
    assert reply(bench, call) is None
    assert bench.model().state is ModelState.READY
    bench.dies(slot)
    bench.ask(1)
    assert bench.model().executing == 1


def test_a_load_that_nobody_wants_any_more_is_not_waited_for() -> None:
    bench = Bench()
    slot = bench.worker()
    bench.load(config())
    bench.ask_control("unload", model="m")
    assert bench.is_stopped(slot)
    bench.wait(Limits().unwanted_grace_ns)
    assert bench.killed == [slot]

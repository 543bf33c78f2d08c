"""The index names what was never loaded, asks nobody where it need not, and never waits long."""

from __future__ import annotations

from naiad.broker.core import events as e
from naiad.broker.core.listing import LISTINGS_PENDING_MAX, PATIENCE_NS
from support.simulated_bench import CLIENT, Bench, config


def names(bench: Bench, call: int) -> list[str] | None:
    found = bench.replies.get((CLIENT, call))
    return None if found is None else [row["name"] for row in found[1]]


def test_what_was_never_loaded_has_its_name_alone() -> None:
    bench = Bench()
    bench.served(config())
    rows = bench.index("z", "m", "a")
    assert [row["name"] for row in rows] == ["a", "m", "z"]
    assert rows[0] == {"name": "a"}
    assert rows[1]["state"] == "READY"


def test_ready_models_are_known() -> None:
    bench = Bench()
    bench.served(config())
    assert [row["name"] for row in bench.control("index", ready=True)] == ["m"]
    assert not bench.scans


def test_who_wants_only_what_is_known_makes_nobody_look() -> None:
    bench = Bench()
    bench.served(config())
    assert [row["name"] for row in bench.control("index", known=True)] == ["m"]
    assert not bench.scans


def test_a_helper_that_is_slow_or_lost_keeps_nobody_waiting() -> None:
    bench = Bench()
    bench.served(config())
    slow = bench.ask_control("index")
    bench.wait(PATIENCE_NS - 1)
    assert names(bench, slow) is None
    bench.wait(1)
    assert names(bench, slow) == ["m"]
    lost = bench.ask_control("index")
    fault = e.RepositoryScanned(bench.scans.pop().token, (), "gone", True, only_names=True)
    bench.do(fault)
    assert names(bench, lost) == ["m"]
    bench.do(fault)  # once more changes nothing
    assert bench.control("model_ready", model="m")["ready"]


def test_so_many_calls_wait_and_no_more() -> None:
    bench = Bench()
    waiting = [bench.ask_control("index") for _ in range(LISTINGS_PENDING_MAX)]
    assert names(bench, waiting[-1]) is None
    assert bench.control("index") == []

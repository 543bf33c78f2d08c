"""The operation `counters`: what is counted, by hand, and that no answer is long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from naiad.broker.core.batcher import ALONE, REASONS
from naiad.broker.core.counters import FIGURES_MAX, FIGURES_OF_A_VERSION, MODELS_MAX
from naiad.broker.core.statistics import (
    OTHER_REASON,
    REASON_CHARS_MAX,
    REASONS_MAX,
    TIME_BOUNDS_NS,
    BatchSizeStatistics,
    ModelStatistics,
    count_reason,
)
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, RequestError
from support.simulated_bench import (
    MS,
    Bench,
    batching,
    config,
    instances,
    parameters,
    queue_policy,
)


def pieces(bench: Bench, **arguments: Any) -> list[dict[str, Any]]:
    """Every answer, as a reader asks for them."""
    found = [bench.control("counters", **arguments)]
    while found[-1]["next"] is not None:
        found.append(bench.control("counters", after=found[-1]["next"], **arguments))
        assert len(found) < 1_000
    return found


def row(bench: Bench, name: str = "m") -> dict[str, Any]:
    found = [one for piece in pieces(bench)[1:] for one in piece["models"] if one["name"] == name]
    assert len(found) == 1
    only: dict[str, Any] = json.loads(json.dumps(found[0]))  # as the reader gets it
    return only


def bucket(times: list[int], ns: int) -> int:
    """The count of the bucket that a time falls into."""
    return times[next(i for i, bound in enumerate((*TIME_BOUNDS_NS, ns)) if ns <= bound)]


def test_the_first_answer_is_of_the_server() -> None:
    bench = Bench()
    bench.served(config())
    bench.ask(1, model="nobody")
    (first, *_) = pieces(bench)
    server = first["server"]
    assert (server["name"], server["ready"], server["sessions"]) == ("bench", True, 1)
    assert server["waiting_instances"] == {"cpu": 0}
    assert server["counters"]["refused_requests"] == {Code.NOT_FOUND: 1}
    assert server["time_bounds_ns"] == TIME_BOUNDS_NS


def test_a_full_batch_is_one_request_without_dynamic_batching() -> None:
    for given, rows in ((config(max_batch_size=8), 1), (config(**batching(4)), 4)):
        bench = Bench()
        bench.served(given)
        assert row(bench)["rows_max"] == rows


def test_a_batch_of_known_times() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(4)))
    bench.ask(1, rows=1)
    bench.ask(2, rows=2)
    bench.ask(3, rows=1)
    bench.now_ns += 3 * MS
    bench.finish(slot, took_ns=3 * MS)  # of 1, alone
    bench.now_ns += 30 * MS
    bench.finish(slot, took_ns=30 * MS)  # of 2 and 3, which waited for it
    found = row(bench)
    assert (found["success_count"], found["inference_count"]) == (3, 4)
    assert found["execution_count"] == 2
    assert found["success_ns"] == (3 + 33 + 33) * MS
    assert found["queue_ns"] == (0 + 3 + 3) * MS
    assert found["compute_infer_ns"] == (3 + 30 + 30) * MS
    assert sum(found["request_times"]) == sum(found["queue_times"]) == 3
    assert bucket(found["request_times"], 3 * MS) == 1
    assert bucket(found["request_times"], 33 * MS) == 2
    assert bucket(found["queue_times"], 0) == 1
    assert bucket(found["queue_times"], 3 * MS) == 2
    assert sum(found["compute_times"]) == 2
    assert bucket(found["compute_times"], 30 * MS) == 1
    assert sorted(found["batches"]) == [[1, 1, 0, 3 * MS, 0], [3, 1, 0, 30 * MS, 0]]
    assert found["batch_reasons"] == {**dict.fromkeys(REASONS, 0), "idle": 2}
    (instance,) = found["instances"]
    assert instance["busy_ns"] == 33 * MS
    assert (instance["serves"], instance["executing_ns"]) == (True, 0)


def test_what_waits_and_what_runs() -> None:
    bench = Bench()
    bench.served(config())
    bench.ask(1)
    bench.now_ns += 5 * MS
    bench.ask(2)
    bench.now_ns += 7 * MS
    found = row(bench)
    assert (found["executing"], found["pending"]) == (1, 1)
    assert found["oldest_pending_ns"] == 7 * MS
    assert found["instances"][0]["executing_ns"] == 12 * MS


def test_the_oldest_of_many_kinds_of_requests_is_found() -> None:
    bench = Bench()
    bench.served(config(**batching(4), input=[{"name": "X", "data_type": "TYPE_UINT8",
                                               "dims": [-1]}]))  # fmt: skip
    bench.ask(1, shape=(1, 4))
    for number in range(2, 40):
        bench.now_ns += 1 * MS
        bench.ask(number, shape=(1, number))
    assert row(bench)["oldest_pending_ns"] == 37 * MS


def test_failures_by_code() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**queue_policy(1, max_queue_size=1)))
    for number in (1, 2, 3):  # one runs, one waits
        bench.ask(number, rows=1)
    bench.finish(slot, error=(Code.MODEL_ERROR, "no", False))
    found = row(bench)
    assert found["failures"] == {Code.QUEUE_FULL: 1, Code.MODEL_ERROR: 1}
    assert found["success_count"] == 0


def test_deaths_by_reason_and_restarts() -> None:
    bench = Bench()
    first, _ = bench.served(config(**instances(2)))
    bench.dies(first)
    found = row(bench)
    assert found["worker_deaths"] == {"SIGKILL": 1}
    assert sorted(one["restarts"] for one in found["instances"]) == [0, 1]
    assert [one["pid"] for one in found["instances"]].count(0) == 1


def test_an_early_batch_is_told_apart() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(late_batch=True)))
    for number in (1, 2):
        bench.ask(number)
        bench.now_ns += 10 * MS
        bench.finish(slot, took_ns=10 * MS)
    bench.ask(3)
    bench.ask(4)
    bench.wait(10 * MS)
    reasons = row(bench)["batch_reasons"]
    assert {one: count for one, count in reasons.items() if count} == {"alone": 2}
    for _ in range(2):
        bench.finish(slot, took_ns=10 * MS)
    reasons = row(bench)["batch_reasons"]
    assert {one: count for one, count in reasons.items() if count} == {"alone": 3, "early": 1}


@pytest.mark.parametrize("limit", [1, 3, MODELS_MAX, 10_000])
def test_pieces_have_every_model_once_and_are_short(limit: int) -> None:
    bench = Bench()
    names = sorted(f"model {number}" for number in range(MODELS_MAX + 9))
    for name in names:
        bench.served(config(name, **instances(1, name)))
    _, *found = pieces(bench, limit=limit)
    assert [one["name"] for piece in found for one in piece["models"]] == names
    sizes = [len(piece["models"]) for piece in found]
    assert max(sizes) <= min(limit, MODELS_MAX, FIGURES_MAX // FIGURES_OF_A_VERSION)


def test_a_model_with_many_figures_goes_alone() -> None:
    bench = Bench()
    for name in "abc":
        bench.served(config(name, **instances(1, name), **batching(4000)))
    bench.model("b").statistics.batches = {n: BatchSizeStatistics() for n in range(1, 2000)}
    _, *found = pieces(bench)
    assert [[one["name"] for one in piece["models"]] for piece in found] == [["a"], ["b"], ["c"]]


def test_an_unloaded_model_is_gone_and_one_that_failed_is_not() -> None:
    bench = Bench()
    for name in ("bad", "gone", "good"):
        bench.load(config(name, **instances(1, name)))
        slot = bench.worker()
        bench.loaded(slot, error=("load_failed", "no", False) if name == "bad" else None)
    call = bench.ask_control("unload", model="gone")
    gone = next(iter(bench.world.models["gone"].versions.values()))
    bench.dies(bench.worker_of(gone))
    assert bench.replies[501, call][0] is None
    found = {one["name"]: one["state"] for piece in pieces(bench)[1:] for one in piece["models"]}
    assert found == {"bad": "UNAVAILABLE", "good": "READY"}


def test_models_that_come_and_go_between_two_pieces_harm_nothing() -> None:
    bench = Bench()
    for name in "bdf":
        bench.served(config(name, **instances(1, name)))
    bench.control("counters")
    first = bench.control("counters", after="", limit=1)
    assert first["next"] == "b"
    del bench.world.models["b"], bench.world.models["d"]
    bench.served(config("e", **instances(1, "e")))
    rest = bench.control("counters", after="b", limit=9)
    assert [one["name"] for one in rest["models"]] == ["e", "f"]
    assert rest["next"] is None
    assert bench.control("counters", after="zzz")["models"] == []


def test_a_limit_must_be_a_number() -> None:
    with pytest.raises(RequestError, match="limit"):
        Bench().control("counters", limit="many")


def test_reasons_are_bounded() -> None:
    statistics = ModelStatistics()
    for number in range(3 * REASONS_MAX):
        count_reason(statistics.worker_deaths, f"exit code {number}")
    assert len(statistics.worker_deaths) == REASONS_MAX + 1
    assert statistics.worker_deaths[OTHER_REASON] == 2 * REASONS_MAX
    count_reason(statistics.worker_deaths, "exit code 1")
    assert statistics.worker_deaths["exit code 1"] == 2, "a known one still counts"
    long = ModelStatistics().worker_deaths
    count_reason(long, "x" * 10_000)
    assert list(long) == ["x" * REASON_CHARS_MAX]


def test_a_bound_is_inclusive_and_what_is_longer_has_a_place() -> None:
    statistics = ModelStatistics()
    for ns in (TIME_BOUNDS_NS[2], TIME_BOUNDS_NS[2] + 1, 2**62):
        statistics.executed(1, 1, m.Durations(0, ns, 0), ALONE)
    assert statistics.compute_times[2] == 1
    assert statistics.compute_times[3] == 1
    assert statistics.compute_times[-1] == 1

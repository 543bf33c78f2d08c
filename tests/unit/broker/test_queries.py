"""What the broker tells about itself: shapes of the answers, and when it is ready."""

from __future__ import annotations

import json
from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.protocol.errors import Code, NaiadError, RequestError
from support.simulated_bench import CLIENT, MS, Bench, S, batching, config, instances

LOAD_ERROR = (str(Code.LOAD_FAILED), "initialize raised", False)


def test_metadata_of_the_server() -> None:
    found = Bench().control("server_metadata")
    assert (found["name"], found["version"]) == ("bench", "0")
    assert "statistics" in found["extensions"]


def test_metadata_of_a_model_shows_the_batch_dimension() -> None:
    bench = Bench()
    bench.served(config(**batching(4)))
    assert bench.control("model_metadata", model="m") == {
        "name": "m",
        "versions": ["1"],
        "platform": "identity",
        "inputs": [{"name": "X", "datatype": "UINT8", "shape": [-1, 4]}],
        "outputs": [{"name": "Y", "datatype": "UINT8", "shape": [-1, 4]}],
    }


def test_the_config_is_the_one_the_worker_completed() -> None:
    bench = Bench()
    bench.load(config(input=[]))
    bench.loaded(bench.worker(), config=config(max_batch_size=3))
    assert bench.control("model_config", model="m")["max_batch_size"] == 3


@pytest.mark.parametrize("operation", ["model_metadata", "model_config"])
def test_unknown_models_and_versions_have_no_metadata(operation: str) -> None:
    bench = Bench()
    bench.served(config())
    with pytest.raises(RequestError, match="unknown model: 'x' is not found"):
        bench.control(operation, model="x")
    with pytest.raises(RequestError, match="'m' version 9 is not found"):
        bench.control(operation, model="m", version=9)


def test_readiness_follows_loads_deaths_and_drain() -> None:
    bench = Bench()

    def ready() -> bool:
        return bench.control("ready")["ready"] is True

    def model_ready() -> bool:
        return bench.control("model_ready", model="m")["ready"] is True

    assert bench.control("live") == {"live": True}
    bench.load(config())
    assert not ready()
    slot = bench.worker()
    bench.loaded(slot)
    assert ready()
    assert model_ready()
    assert not bench.control("model_ready", model="m", version=2)["ready"]
    assert not bench.control("model_ready", model="other")["ready"]
    bench.dies(slot)
    assert not model_ready()
    assert not ready()
    bench.loaded(bench.worker())
    assert ready()
    bench.do(e.DrainAsked(bench.now_ns + S))
    assert not ready()


def test_a_model_with_one_of_two_instances_is_ready() -> None:
    bench = Bench()
    first, _ = bench.served(config(**instances(2)))
    bench.dies(first)
    assert bench.control("model_ready", model="m")["ready"]


def test_a_silent_worker_does_not_make_a_model_ready() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.do(e.SlotSilent(slot, is_killed=True))
    assert not bench.control("model_ready", model="m")["ready"]


def test_an_unloaded_model_does_not_make_the_server_unready() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.control("unload", model="m")
    bench.dies(slot)
    assert bench.control("ready")["ready"]


def test_the_index_tells_states_and_reasons() -> None:
    bench = Bench()
    bench.served(config())
    bench.load(config("broken"))
    bench.loaded(bench.worker(), LOAD_ERROR)
    rows = {row["name"]: row for row in bench.index()}
    assert rows["m"] == {"name": "m", "version": "1", "state": "READY", "reason": ""}
    assert rows["broken"]["state"] == "UNAVAILABLE"
    assert "initialize raised" in rows["broken"]["reason"]
    assert [row["name"] for row in bench.control("index", ready=True)] == ["m"]


def test_statistics_are_of_ready_versions_and_unknown_models_are_an_error() -> None:
    bench = Bench()
    bench.served(config())
    (found,) = bench.control("statistics")["model_stats"]
    assert (found["name"], found["version"], found["execution_count"]) == ("m", "1", 0)
    with pytest.raises(RequestError, match="requested model 'x' is not available"):
        bench.control("statistics", model="x")
    with pytest.raises(RequestError, match="requested model version is not available for model"):
        bench.control("statistics", model="m", version=2)


def test_the_labels_of_classes_are_told_once_and_survive_a_restart() -> None:
    bench = Bench()
    bench.served(config(**batching(4)), labels={"Y": ["one", "two"]})
    found = bench.control("class_labels", model="m")
    assert (found["batches"], found["labels"]) == (True, {"Y": ["one", "two"]})
    assert bench.control("class_labels", model="m", known=found["mark"]) == {"mark": found["mark"]}
    again = bench.restarted().control("class_labels", model="m", known=found["mark"])
    assert {name: list(one) for name, one in again["labels"].items()} == found["labels"]
    with pytest.raises(RequestError, match="unknown model: 'x' is not found"):
        bench.control("class_labels", model="x")
    bench.load(config(max_batch_size=0), edition="1")
    bench.loaded(bench.worker())
    newer = bench.control("class_labels", model="m", known=found["mark"])
    assert (newer["batches"], newer["labels"]) == (False, {})


def test_the_status_shows_models_instances_sessions_and_counters() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    spare = bench.worker()
    bench.ask(1, 2)
    bench.wait(30 * MS)
    found = bench.control("status")
    json.dumps(found)
    (model,) = found["models"]
    assert (model["queued"], model["executing"], model["instances_ready"]) == (1, 1, 1)
    assert model["oldest_pending_s"] == pytest.approx(0.03)
    busy, idle = found["instances"]
    assert (busy["state"], busy["pid"], busy["executing_s"]) == ("BUSY", slot, pytest.approx(0.03))
    assert (idle["state"], idle["pid"]) == ("SPARE", spare)
    (session,) = found["sessions"]
    assert (session["in_flight"], session["inline_bytes"]) == (2, 8)
    assert found["server"]["phase"] == "serving"
    assert found["counters"]["reexecutions"] == {}


def test_the_status_counts_deaths_and_reexecutions_by_reason() -> None:
    bench = Bench()
    (slot,) = bench.served(config())
    bench.ask(1)
    bench.dies(slot, executing=bench.batches[slot][0].id)
    counters = bench.control("status")["counters"]
    assert counters["worker_deaths"] == {"SIGKILL": 1}
    assert counters["reexecutions"] == {"worker_died": 1}


@pytest.mark.parametrize(
    ("operation", "arguments", "text"),
    [
        ("nonsense", {}, "unknown operation 'nonsense'; known are class_labels, counters, index"),
        ("model_ready", {}, "model: expected a non-empty string"),
        ("model_ready", {"model": 3}, "model: expected a non-empty string"),
        ("model_ready", {"model": "m", "version": -7}, "version: expected a number"),
        ("model_ready", {"model": "m", "version": "1"}, "version: expected a number"),
        ("load", {"model": ""}, "model: expected a non-empty string"),
        ("region_register", {"name": "n", "key": "/k"}, "byte_size: expected a number"),
        ("region_status", {"name": "n"}, "Unable to find system shared memory region: 'n'"),
    ],
)
def test_wrong_calls_are_answered_with_what_was_expected(
    operation: str, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(NaiadError) as caught:
        Bench().control(operation, **arguments)
    assert text in caught.value.message


def test_an_override_that_is_no_text_is_refused() -> None:
    bench = Bench()
    call = bench.ask_control("load", payload=b"\xff", model="m")
    error, _ = bench.replies[CLIENT, call]
    assert error is not None
    assert "not UTF-8" in error.message


def test_readiness_tells_loading_from_failed() -> None:
    bench = Bench()

    def told() -> tuple[str, dict[str, int]]:
        found = bench.control("ready")
        assert found["ready"] is (found["state"] == "ready")
        return found["state"], {name: one for name, one in found["models"].items() if one}

    assert told() == ("ready", {})
    bench.served(config("a"))
    bench.load(config("b"))
    assert told() == ("loading", {"known": 2, "ready": 1, "loading": 1})
    bench.loaded(bench.worker(), error=LOAD_ERROR)
    assert told() == ("failed", {"known": 2, "ready": 1, "failed": 1})
    assert bench.control("ready")["started"] is True
    bench.do(e.DrainAsked(bench.now_ns + 10 * S))
    found = bench.control("ready")
    assert (found["state"], found["started"]) == ("draining", False)

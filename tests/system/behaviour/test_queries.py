"""What a server tells of itself: metadata, configs, versions, statistics, refusals.

One server with sound models of several kinds beside those that this release does not serve.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, Code, NaiadError, RequestError
from naiad.protocol.messages import Sequence
from naiad.testing.server import Server, serve
from support.models import add_echo, add_onnx_adder, add_python, write_config
from support.models_python import ECHO, RAISES_ON_NEGATIVE
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("unharmed")

ARRAYS = {"INPUT0": np.zeros((1, 16), np.float32)}
LEAVES = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
NEWEST_TWO = "version_policy { latest { num_versions: 2 } }"
CHOSEN = "version_policy { specific { versions: [ 1, 3, 7 ] } }"
TENSOR = 'name: "{}" data_type: TYPE_FP32 dims: [ 16 ]'
INPUT, OUTPUT = f"input {{ {TENSOR.format('A')} }}", f"output {{ {TENSOR.format('B')} }}"
REFUSED = {
    "gpu": (
        f'backend: "identity" {INPUT} {OUTPUT} instance_group {{ kind: KIND_GPU }}',
        ("KIND_GPU", "no GPU is visible", "--on-missing-gpu=cpu"),
    ),
    "ensemble": (
        f"""platform: "ensemble" {INPUT} {OUTPUT} ensemble_scheduling {{ step {{
        model_name: "echo" model_version: -1
        input_map {{ key: "INPUT0" value: "A" }} output_map {{ key: "OUTPUT0" value: "B" }}
        }} }}""",
        ("ensemble_scheduling: ensembles are not in this release",),
    ),
    "sequence": (
        f'backend: "identity" {INPUT} {OUTPUT} sequence_batching {{ }}',
        ("sequence_batching: stateful models are not in this release",),
    ),
    "decoupled": (
        f'backend: "identity" {INPUT} {OUTPUT} model_transaction_policy {{ decoupled: true }}',
        ("model_transaction_policy.decoupled", "not in this release"),
    ),
    "tensorflow": (
        f'platform: "tensorflow_savedmodel" {INPUT} {OUTPUT}',
        ("tensorflow", "tf2onnx"),
    ),
    "unknown_backend": (
        f'backend: "pyhton" {INPUT} {OUTPUT}',
        ("pyhton", "python"),
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo", "FP32 -1 3")
    batching = "dynamic_batching { max_queue_delay_microseconds: 50000 }"
    add_python(
        repository,
        "batched",
        RAISES_ON_NEGATIVE,
        max_batch_size=8,
        extra=batching,
        parameters={"colour": "blue"},
    )
    add_onnx_adder(repository, "adder")
    add_python(
        repository,
        "two_newest",
        ECHO,
        versions=(1, 2, 10),
        extra=NEWEST_TWO,
    )
    add_python(
        repository,
        "chosen",
        ECHO,
        versions=(1, 2, 3),
        extra=CHOSEN,
    )
    add_echo(repository, "newest", versions=(9, 10))
    for name, (text, _) in REFUSED.items():
        write_config(repository, name, text)
    with serve(repository, arguments=["--spares", "0"]) as server:
        yield server


def stats_of(client: Client, model: str) -> dict[str, Any]:
    (stats,) = client.statistics(model)["model_stats"]
    assert isinstance(stats, dict)
    return stats


# --- the server --------------------------------------------------------------------------------


def test_the_server_names_itself_and_its_extensions(client: Client, server: Server) -> None:
    found = client.metadata()
    assert found["name"] == server.name
    assert found["version"]
    assert {"statistics", "model_repository", "model_configuration"} <= set(found["extensions"])


def test_it_is_live_and_not_ready_while_models_that_should_serve_do_not(client: Client) -> None:
    assert client.live()
    assert not client.ready(), "refused models are models that should serve"


# --- models ------------------------------------------------------------------------------------


def test_metadata_shows_shapes_as_clients_send_them(client: Client) -> None:
    assert client.metadata("batched") == {
        "name": "batched",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 16]}],
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, 16]}],
    }
    assert client.metadata("echo")["inputs"][0]["shape"] == [-1, 3]


def test_metadata_of_a_completed_config_has_what_the_model_itself_said(client: Client) -> None:
    found = client.metadata("adder")
    assert [one["name"] for one in found["inputs"]] == ["INPUT0", "INPUT1"]
    assert [one["shape"] for one in found["outputs"]] == [[-1, 16], [-1, 16]]
    assert {one["datatype"] for one in found["inputs"] + found["outputs"]} == {"FP32"}


def test_a_config_shows_every_default_that_is_in_force(client: Client) -> None:
    config = client.config("batched")
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 50000
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    assert config["instance_group"][0]["count"] == 1
    assert config["parameters"]["colour"] == {"string_value": "blue"}
    assert config["input"][0]["dims"] == [16]
    completed = client.config("adder")
    assert completed["max_batch_size"] == 4
    assert "dynamic_batching" in completed


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("metadata", "'echo' version 7"),
        ("config", "'echo' version 7"),
        ("statistics", "requested model version is not available for model 'echo'"),
    ],
)
def test_queries_about_what_is_not_there_name_it(client: Client, query: str, text: str) -> None:
    with pytest.raises(RequestError, match="'nowhere'"):
        getattr(client, query)("nowhere")
    with pytest.raises(NaiadError, match=text):
        getattr(client, query)("echo", 7)


def test_a_model_nobody_knows_is_not_ready_and_no_error(client: Client) -> None:
    assert not client.model_ready("nowhere")
    assert not client.model_ready("echo", 7)
    assert client.model_ready("echo", 1)


# --- versions ----------------------------------------------------------------------------------


def test_latest_serves_the_numerically_greatest(client: Client) -> None:
    assert client.metadata("two_newest")["versions"] == ["2", "10"]
    assert client.metadata("two_newest", 2)["versions"] == ["2"]
    assert client.metadata("newest")["versions"] == ["10"]
    arrays = {"INPUT0": ARRAYS["INPUT0"][0]}
    assert client.infer("two_newest", arrays).version == 10
    assert client.infer("two_newest", arrays, version=2).version == 2
    with pytest.raises(RequestError, match="'two_newest' version 1 is not found") as caught:
        client.infer("two_newest", arrays, version=1)
    assert caught.value.code == Code.NOT_FOUND


def test_specific_serves_those_that_are_there_and_tells_of_the_missing(
    client: Client, server: Server
) -> None:
    assert client.metadata("chosen")["versions"] == ["1", "3"]
    text = "version 7 of the version policy does not exist"
    wait_until(lambda: text in server.log, "a warning in the log")


def test_versions_have_instances_and_statistics_of_their_own(client: Client) -> None:
    arrays = {"INPUT0": ARRAYS["INPUT0"][0]}
    for _ in range(3):
        client.infer("chosen", arrays, version=1)
    client.infer("chosen", arrays)
    counts = {
        stats["version"]: stats["inference_count"]
        for stats in client.statistics("chosen")["model_stats"]
    }
    assert counts == {"1": 3, "3": 1}
    (only,) = client.statistics("chosen", 1)["model_stats"]
    assert only["version"] == "1"


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_yet_is_refused_by_name_for_that_model_alone(
    client: Client, server: Server, name: str
) -> None:
    rows = {row["name"]: row for row in client.index()}
    assert rows[name]["state"] == "UNAVAILABLE"
    for part in REFUSED[name][1]:
        assert part in rows[name]["reason"]

    def is_logged() -> bool:
        return any(f"model {name}" in line and "ERROR" in line for line in server.log.splitlines())

    wait_until(is_logged, "an error in the log")
    with pytest.raises(NaiadError, match=f"'{name}' has no available versions"):
        client.infer(name, {"A": np.zeros(16, np.float32)})
    assert rows["echo"]["state"] == "READY"


def test_the_index_has_a_row_for_each_version_and_each_failed_model(client: Client) -> None:
    rows = client.index()
    assert [(row["name"], row["version"]) for row in rows if row["state"] == "READY"] == [
        ("adder", "1"),
        ("batched", "1"),
        ("chosen", "1"),
        ("chosen", "3"),
        ("echo", "1"),
        ("newest", "10"),
        ("two_newest", "2"),
        ("two_newest", "10"),
    ]
    assert {row["name"] for row in rows if row["state"] == "UNAVAILABLE"} == set(REFUSED)
    assert all(row.keys() == {"name", "version", "state", "reason"} for row in rows)
    assert client.index(ready=True) == [row for row in rows if row["state"] == "READY"]


def test_what_a_request_asks_for_and_nobody_serves_is_refused_by_name(client: Client) -> None:
    arrays = {"INPUT0": np.zeros((1, 3), np.float32)}
    with pytest.raises(RequestError, match="sequence") as caught:
        client.infer("echo", arrays, sequence=Sequence(7, True, False))
    assert caught.value.code == Code.UNSUPPORTED


# --- statistics --------------------------------------------------------------------------------


def test_statistics_have_the_shape_that_tools_rely_on(client: Client) -> None:
    client.infer("echo", {"INPUT0": np.zeros((2, 3), np.float32)})
    stats = stats_of(client, "echo")
    assert set(stats) == {
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "response_stats",
        "batch_stats",
        "memory_usage",
    }
    assert (stats["name"], stats["version"]) == ("echo", "1")
    assert tuple(stats["inference_stats"]) == LEAVES
    assert all(leaf.keys() == {"count", "ns"} for leaf in stats["inference_stats"].values())
    assert set(stats["batch_stats"][0]) == {
        "batch_size",
        "compute_input",
        "compute_infer",
        "compute_output",
    }
    assert stats["response_stats"] == {}
    assert abs(stats["last_inference"] / 1000 - time.time()) < 60


def test_a_model_that_was_never_asked_has_zeros(client: Client) -> None:
    stats = stats_of(client, "adder")
    assert stats["last_inference"] == stats["inference_count"] == stats["execution_count"] == 0
    assert all(leaf == {"count": 0, "ns": 0} for leaf in stats["inference_stats"].values())
    assert stats["batch_stats"] == []


def test_rows_count_as_inferences_and_batches_as_executions(client: Client) -> None:
    before = stats_of(client, "batched")
    futures = [
        client.submit("batched", {"INPUT0": np.zeros((rows, 16), np.float32)}) for rows in (1, 2, 3)
    ]
    for future in futures:
        future.result(timeout=20)
    after = stats_of(client, "batched")
    assert after["inference_count"] - before["inference_count"] == 6
    assert after["execution_count"] - before["execution_count"] == 1
    (joined,) = [row for row in after["batch_stats"] if row["batch_size"] == 6]
    assert joined["compute_infer"]["count"] == 1
    told = after["inference_stats"]
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert told[name]["count"] - before["inference_stats"][name]["count"] == 3
        assert told[name]["ns"] > before["inference_stats"][name]["ns"]
    charged = told["compute_infer"]["ns"] - before["inference_stats"]["compute_infer"]["ns"]
    assert charged == 3 * joined["compute_infer"]["ns"], "each is charged the whole batch"
    assert told["success"]["ns"] >= told["queue"]["ns"] + told["compute_infer"]["ns"]


def test_failures_of_the_model_are_counted_and_refused_requests_are_not(client: Client) -> None:
    before = stats_of(client, "batched")["inference_stats"]
    with pytest.raises(NaiadError):
        client.infer("batched", {"INPUT0": -np.ones((1, 16), np.float32)})
    with pytest.raises(RequestError):
        client.infer("batched", {"INPUT0": np.zeros((1, 17), np.float32)})
    after = stats_of(client, "batched")["inference_stats"]
    assert after["fail"]["count"] - before["fail"]["count"] == 1
    assert after["success"] == before["success"]


def test_statistics_of_all_models_are_those_of_the_ready_versions(client: Client) -> None:
    found = [(one["name"], one["version"]) for one in client.statistics()["model_stats"]]
    ready = [(row["name"], row["version"]) for row in client.index(ready=True)]
    assert sorted(found) == sorted(ready)

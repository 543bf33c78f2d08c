"""The broker's JSON as messages that stock clients read."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

from naiad.broker.core.statistics import ModelStatistics
from naiad.config.model import ModelConfig
from naiad.config.normalise import normalise
from naiad.config.pbtxt import parse
from naiad.gateway.grpc_codec import documents
from naiad.gateway.json_documents import value_count
from naiad.gateway.long_work import Steps
from naiad.protocol.errors import RequestError
from support.steps import ended

CONFIG = b"""
name: "m" backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "y" data_type: TYPE_STRING dims: [ 1 ] }
dynamic_batching { max_queue_delay_microseconds: 100 priority_levels: 2
  default_priority_level: 1 }
parameters { key: "k" value { string_value: "v" } }
optimization {
  cuda { graphs: true graph_spec { batch_size: 1 input { key: "x" value { dim: 7 } } } }
}
version_policy { specific { versions: [ 1, 3 ] } }
"""


def written(steps: Steps[bytes]) -> bytes:
    return ended(steps)[0]


def test_server_metadata() -> None:
    data = documents.server_metadata({"name": "n", "version": "1", "extensions": ["a", "b"]})

    message = service_pb2.ServerMetadataResponse.FromString(data)

    assert (message.name, message.version, list(message.extensions)) == ("n", "1", ["a", "b"])


def test_model_metadata() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    document = {"name": "m", "versions": ["1", "3"], "platform": "p", "inputs": [tensor]}
    data = written(documents.model_metadata({**document, "outputs": []}))

    message = service_pb2.ModelMetadataResponse.FromString(data)

    assert (message.name, list(message.versions), message.platform) == ("m", ["1", "3"], "p")
    assert list(message.inputs[0].shape) == [-1, 4]
    assert len(message.outputs) == 0


def test_a_whole_configuration() -> None:
    parsed = parse(CONFIG)
    assert parsed.json is not None
    config = ModelConfig.from_json(normalise(parsed.json)).to_json()

    message = service_pb2.ModelConfigResponse.FromString(
        written(documents.model_config(config))
    ).config

    assert message.name == "m"
    assert message.dynamic_batching.max_queue_delay_microseconds == 100
    assert list(message.version_policy.specific.versions) == [1, 3]
    assert message.parameters["k"].string_value == "v"
    assert list(message.optimization.cuda.graph_spec[0].input["x"].dim) == [7]
    assert message.instance_group[0].count == 1


def test_statistics() -> None:
    statistics = ModelStatistics()
    statistics.success_count, statistics.success_ns = 3, 2**60
    one = statistics.to_json("m", 2)
    leaf = {"count": 1, "ns": 2}
    one["batch_stats"] = [{"batch_size": 4, "compute_input": leaf, "compute_infer": leaf}]
    one["response_stats"] = {"0": {"success": leaf, "empty_response": leaf}}
    one["memory_usage"] = [{"type": "CPU", "id": 0, "byte_size": 2**40}]

    data = written(documents.statistics({"model_stats": [one]}))

    (message,) = service_pb2.ModelStatisticsResponse.FromString(data).model_stats
    assert (message.name, message.version) == ("m", "2")
    assert message.inference_stats.success.count == 3
    assert message.inference_stats.success.ns == 2**60
    assert message.batch_stats[0].batch_size == 4
    assert message.batch_stats[0].compute_infer.ns == 2
    assert message.response_stats["0"].success.count == 1
    assert message.memory_usage[0].byte_size == 2**40


def test_the_index_of_a_model_that_was_never_loaded() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a"},
        {"name": "b", "version": "1", "state": "READY", "reason": ""},
    ]

    message = service_pb2.RepositoryIndexResponse.FromString(written(documents.index(rows)))

    assert [(one.name, one.version, one.state) for one in message.models] == [
        ("a", "", ""),
        ("b", "1", "READY"),
    ]


def test_regions_by_name_without_what_the_message_does_not_have() -> None:
    row = {"name": "r", "key": "/k", "offset": 8, "byte_size": 64, "id": 2**62}

    message = service_pb2.SystemSharedMemoryStatusResponse.FromString(
        written(documents.system_regions([row]))
    )

    assert message.regions["r"].key == "/k"
    assert (message.regions["r"].offset, message.regions["r"].byte_size) == (8, 64)


def batches(count: int) -> list[dict[str, Any]]:
    leaf = {"count": 1, "ns": 2}
    return [{"batch_size": size, "compute_input": leaf} for size in range(1, count)]


MANY = 300
LONG_STATISTICS = {
    "model_stats": [
        {"name": "before"},
        {"name": "m", "version": "1", "batch_stats": batches(MANY), "inference_count": 5},
        {"name": "behind", "batch_stats": batches(3)},
        *[{"name": f"m{number}"} for number in range(MANY)],
        {"name": "last", "batch_stats": batches(MANY), "unknown": batches(MANY)},
    ],
    "unknown": batches(MANY),
}
TENSORS = [{"name": f"t{number}", "datatype": "FP32", "shape": [1]} for number in range(MANY)]
SPEC = {"batch_size": 1, "input": {"x": {"dim": ["7", "8"]}}}
LONG_CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": f"t{number}", "data_type": "TYPE_FP32"} for number in range(MANY)],
    "optimization": {
        "priority": "PRIORITY_MAX",
        "cuda": {"graphs": True, "graph_spec": [SPEC] * MANY, "busy_wait_events": True},
    },
    "dynamic_batching": {
        "preferred_batch_size": [*range(2 * MANY)],
        "priority_queue_policy": {str(level): {"max_queue_size": level} for level in range(MANY)},
        "preserve_ordering": True,
    },
    "parameters": {f"k{number}": {"string_value": "v"} for number in range(MANY)},
    "metric_tags": {f"k{number}": "v" for number in range(MANY)},
}
LONG_ENSEMBLE = {
    "name": "m",
    "ensemble_scheduling": {
        "step": [
            {"model_name": f"m{number}", "model_version": -1, "input_map": {"a": "b", "c": "d"}}
            for number in range(MANY)
        ]
    },
}
REGIONS = [
    {"name": f"r{n}", "key": "/k", "offset": n, "byte_size": 64, "id": n} for n in range(MANY)
]


@pytest.mark.parametrize(
    ("write", "document", "message"),
    [
        (documents.model_metadata, {"name": "m", "inputs": TENSORS, "outputs": TENSORS},
         service_pb2.ModelMetadataResponse),
        (documents.model_config, LONG_CONFIG, service_pb2.ModelConfigResponse),
        (documents.model_config, LONG_ENSEMBLE, service_pb2.ModelConfigResponse),
        (documents.statistics, LONG_STATISTICS, service_pb2.ModelStatisticsResponse),
        (documents.index, [{"name": f"m{number}", "version": "1"} for number in range(MANY)],
         service_pb2.RepositoryIndexResponse),
        (documents.system_regions, REGIONS, service_pb2.SystemSharedMemoryStatusResponse),
        (documents.cuda_regions, REGIONS, service_pb2.CudaSharedMemoryStatusResponse),
    ],
    ids=["metadata", "config", "ensemble", "statistics", "index", "system regions", "cuda regions"],
)  # fmt: skip
def test_no_step_writes_many_values(
    write: Any, document: Any, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they are in it; and all of them arrive, in their order. What a message does not know
    costs nothing."""
    sizes: list[int] = []
    parse = json_format.ParseDict

    def counted(part: Any, *args: Any, **more: Any) -> Any:
        known = {key: value for key, value in part.items() if key != "unknown"}
        sizes.append(value_count(known, 1 << 30))
        return parse(part, *args, **more)

    monkeypatch.setattr(json_format, "ParseDict", counted)
    data = written(write(document))
    assert len(sizes) > 2
    assert max(sizes) <= documents.VALUES_PER_STEP + len("{[")
    monkeypatch.undo()
    whole: Any = document
    if isinstance(document, list):
        rows = {row["name"]: row for row in document}
        whole = {"models": document} if write is documents.index else {"regions": rows}
    if write is documents.model_config:
        whole = {"config": whole}
    assert message.FromString(data) == json_format.ParseDict(
        whole, message(), ignore_unknown_fields=True
    )


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"optimization": {"cuda": {"graph_spec": [SPEC] * MANY + [{"nothing": 1}]}}}, "nothing"),
        ({"nothing": batches(MANY)}, "nothing"),
        ({"name": batches(MANY)}, "name"),
        ({"max_batch_size": {str(number): 1 for number in range(MANY)}}, "max_batch_size"),
    ],
)
def test_a_long_document_that_is_no_configuration(part: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        written(documents.model_config({"name": "m", **part}))

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
from naiad.gateway.long_work import Steps
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
        documents.system_regions([row])
    )

    assert message.regions["r"].key == "/k"
    assert (message.regions["r"].offset, message.regions["r"].byte_size) == (8, 64)


def test_no_step_writes_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of inputs, outputs or models; all of them arrive, in their order."""
    rows: list[int] = []
    parse = json_format.ParseDict

    def counted(document: Any, *args: Any, **more: Any) -> Any:
        rows.append(sum(len(one) for one in document.values() if isinstance(one, list)))
        return parse(document, *args, **more)

    monkeypatch.setattr(json_format, "ParseDict", counted)
    names = [f"t{number}" for number in range(101)]
    tensors = [{"name": name, "datatype": "FP32", "shape": [1]} for name in names]
    metadata = service_pb2.ModelMetadataResponse.FromString(
        written(documents.model_metadata({"name": "m", "inputs": tensors, "outputs": tensors}))
    )
    assert metadata.name == "m"
    assert [one.name for one in metadata.inputs] == names
    assert [one.name for one in metadata.outputs] == names

    inputs = [{"name": name, "data_type": "TYPE_FP32", "dims": [1]} for name in names]
    config = service_pb2.ModelConfigResponse.FromString(
        written(documents.model_config({"name": "m", "input": inputs, "output": inputs[:3]}))
    ).config
    assert config.name == "m"
    assert [one.name for one in config.input] == names
    assert [one.name for one in config.output] == names[:3]

    models = [{"name": name, "version": "1"} for name in names]
    statistics = service_pb2.ModelStatisticsResponse.FromString(
        written(documents.statistics({"model_stats": models}))
    )
    assert [one.name for one in statistics.model_stats] == names
    index = service_pb2.RepositoryIndexResponse.FromString(written(documents.index(models)))
    assert [one.name for one in index.models] == names
    assert sum(rows) == 5 * 101 + 3
    assert max(rows) <= documents.ROWS_PER_STEP

"""Everything the stock client can ask beside inference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from support.grpc_models import DATATYPES, floats, tensor


def test_health(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo_fp32")
    assert client.is_model_ready("echo_fp32", "1")
    assert not client.is_model_ready("echo_fp32", "2")
    assert not client.is_model_ready("nobody")


def test_server_metadata(client: Any) -> None:
    found = client.get_server_metadata(as_json=True)

    assert {"name", "version", "extensions"} == set(found)
    assert "statistics" in found["extensions"]


def test_model_metadata(client: Any) -> None:
    found = client.get_model_metadata("batched", as_json=True)

    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": ["-1", "4"]}
    assert found == {
        "name": "batched",
        "versions": ["1"],
        "platform": "python",
        "inputs": [tensor],
        "outputs": [{**tensor, "name": "OUTPUT0"}],
    }
    with pytest.raises(InferenceServerException, match="NOT_FOUND"):
        client.get_model_metadata("nobody")


def test_model_config(client: Any) -> None:
    config = client.get_model_config("batched", "1").config

    assert config.name == "batched"
    assert config.max_batch_size == 8
    assert config.input[0].dims == [4]
    assert config.instance_group[0].count == 1
    with pytest.raises(InferenceServerException, match="NOT_FOUND"):
        client.get_model_config("")


def test_statistics(client: Any) -> None:
    def executions() -> int:
        (one,) = client.get_inference_statistics("echo_int8").model_stats
        assert one.inference_stats.queue.count == one.inference_stats.success.count
        return int(one.execution_count)

    before = executions()
    client.infer("echo_int8", [tensor("INT8", DATATYPES["INT8"])])

    assert executions() == before + 1
    assert len(client.get_inference_statistics().model_stats) > 5
    with pytest.raises(InferenceServerException, match="'nobody' is not available"):
        client.get_inference_statistics("nobody")


def test_index_load_and_unload(client: Any) -> None:
    def state(name: str) -> str:
        rows = client.get_model_repository_index().models
        return str(next(row.state for row in rows if row.name == name))

    client.unload_model("echo_uint8", unload_dependents=True)
    assert not client.is_model_ready("echo_uint8")
    with pytest.raises(InferenceServerException):
        client.infer("echo_uint8", floats(1))
    client.load_model("echo_uint8")
    assert client.is_model_ready("echo_uint8")
    assert state("echo_uint8") == "READY"

    config = json.loads(json.dumps(client.get_model_config("echo_uint8", as_json=True)["config"]))
    config["parameters"] = {"mine": {"string_value": "override"}}
    client.load_model("echo_uint8", config=json.dumps(config))
    loaded = client.get_model_config("echo_uint8").config
    assert loaded.parameters["mine"].string_value == "override"
    client.load_model("echo_uint8")


@pytest.mark.differs("Triton calls a configuration that it cannot read an internal error")
@pytest.mark.parametrize(
    ("config", "files", "status"),
    [
        ("{not json", None, "INVALID_ARGUMENT"),
        ('{"no_such_field": 1}', None, "INVALID_ARGUMENT"),
        ("{}", {"file:1/model.py": b"x"}, "UNIMPLEMENTED"),
    ],
)
def test_loads_that_are_refused(client: Any, config: str, files: Any, status: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("echo_int16", config=config, files=files)

    assert caught.value.status() == f"StatusCode.{status}"
    assert client.is_model_ready("echo_int16")


def test_unloading_what_nobody_knows_succeeds(client: Any) -> None:
    client.unload_model("nobody")


def test_loading_what_nobody_knows(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="failed to load 'nobody'"):
        client.load_model("nobody")


def test_cuda_shared_memory_as_without_a_gpu(client: Any) -> None:
    assert len(client.get_cuda_shared_memory_status().regions) == 0
    client.unregister_cuda_shared_memory()
    client.unregister_cuda_shared_memory("r")
    with pytest.raises(InferenceServerException, match="failed to register"):
        client.register_cuda_shared_memory("r", b"\0" * 64, 0, 16)
    with pytest.raises(InferenceServerException, match="NOT_FOUND"):
        client.get_cuda_shared_memory_status("r")


@pytest.mark.differs("settings are not in this release")
def test_settings_that_are_not_in_this_release_say_so(client: Any) -> None:
    for ask in (
        client.get_trace_settings,
        lambda: client.update_trace_settings(settings={"trace_rate": "1"}),
    ):
        with pytest.raises(InferenceServerException) as caught:
            ask()
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
        assert "not in this release" in caught.value.message()

"""Stock tritonclient over HTTP: every public call, unchanged.

`--triton-url HOST:PORT` points these at another server, e.g. a real Triton; it must have the models
`identity` and `spare` (FP32 [16], max_batch_size 8) and `text` (BYTES [1]), explicit control.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from naiad.testing.server import serve
from support.repositories import add_identity

pytestmark = pytest.mark.conformance

SIXTEEN = np.arange(16, dtype=np.float32).reshape(1, 16)


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = request.config.getoption("--triton-url", None)
    if given:
        yield given
        return
    repository = tmp_path_factory.mktemp("conformance")
    for name in ("identity", "spare"):
        add_identity(repository, name, max_batch_size=8)
    config = add_identity(repository, "text", max_batch_size=8) / "config.pbtxt"
    text = config.read_text().replace("TYPE_FP32", "TYPE_STRING").replace("[ 16 ]", "[ 1 ]")
    config.write_text(text)
    arguments = ["--http-port", "0", "--control-mode", "explicit"]
    arguments += ["--load-model", "identity", "--load-model", "text"]
    with serve(repository, arguments=arguments) as server:
        yield server.http_url.removeprefix("http://")


@pytest.fixture
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(url, concurrency=4) as client:
        yield client


def given(values: Any = SIXTEEN, datatype: str = "FP32", binary: bool = True) -> Any:
    out = triton.InferInput("INPUT0", list(values.shape), datatype)
    out.set_data_from_numpy(values, binary_data=binary)
    return out


def wanted(binary: bool = True, **more: Any) -> Any:
    return triton.InferRequestedOutput("OUTPUT0", binary_data=binary, **more)


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity")
    assert client.is_model_ready("identity", "1")
    assert not client.is_model_ready("nobody")
    assert "statistics" in client.get_server_metadata()["extensions"]
    found = client.get_model_metadata("identity", "1")
    assert found["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 16]}]
    assert client.get_model_config("identity")["max_batch_size"] == 8
    with pytest.raises(InferenceServerException, match="unknown model") as raised:
        client.get_model_metadata("nobody")
    assert raised.value.status() == "404"


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_infer(client: triton.InferenceServerClient, binary: bool, coding: str | None) -> None:
    result = client.infer(
        "identity",
        [given(binary=binary)],
        outputs=[wanted(binary)],
        request_id="seven",
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert np.array_equal(result.as_numpy("OUTPUT0"), SIXTEEN)
    assert result.get_response()["id"] == "seven"
    assert result.get_response()["model_version"] == "1"
    assert result.get_output("OUTPUT0")["shape"] == [1, 16]


def test_infer_without_listed_outputs(client: triton.InferenceServerClient) -> None:
    result = client.infer("identity", [given()], priority=1, timeout=5_000_000)
    assert np.array_equal(result.as_numpy("OUTPUT0"), SIXTEEN)


@pytest.mark.parametrize("binary", [True, False])
def test_strings(client: triton.InferenceServerClient, binary: bool) -> None:
    texts = np.array([["grün"], [""], ["a\0b"]], dtype=object)
    result = client.infer("text", [given(texts, "BYTES", binary)], outputs=[wanted(binary)])
    found = result.as_numpy("OUTPUT0")
    assert [one if isinstance(one, str) else one.decode() for one in found[:, 0]] == [
        "grün",
        "",
        "a\0b",
    ]


def test_infer_asynchronously(client: triton.InferenceServerClient) -> None:
    asked = [client.async_infer("identity", [given(SIXTEEN + n)]) for n in range(16)]
    for number, one in enumerate(asked):
        assert np.array_equal(one.get_result().as_numpy("OUTPUT0"), SIXTEEN + number)


def test_static_bodies(client: triton.InferenceServerClient) -> None:
    body, length = triton.InferenceServerClient.generate_request_body([given()])
    assert length
    assert len(body) == length + 64
    result = triton.InferenceServerClient.parse_response_body(
        json.dumps(
            {
                "model_name": "m",
                "model_version": "1",
                "outputs": [{"name": "O", "datatype": "INT32", "shape": [1], "data": [5]}],
            }
        ).encode()
    )
    assert result.as_numpy("O").tolist() == [5]


def test_classification(client: triton.InferenceServerClient) -> None:
    result = client.infer("identity", [given()], outputs=[wanted(class_count=2)])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"15.000000:15", b"14.000000:14"]]


def test_statistics(client: triton.InferenceServerClient) -> None:
    before = client.get_inference_statistics("identity")["model_stats"][0]
    client.infer("identity", [given()])
    after = client.get_inference_statistics("identity", "1")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 1
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert after["inference_stats"][name]["count"] > 0


def test_repository(client: triton.InferenceServerClient) -> None:
    client.load_model("spare")
    assert client.is_model_ready("spare")
    rows = {row["name"]: row for row in client.get_model_repository_index()}
    assert rows["spare"]["state"] == "READY"
    client.unload_model("spare")
    assert not client.is_model_ready("spare")
    with pytest.raises(InferenceServerException, match="failed to load 'nobody'"):
        client.load_model("nobody")


def test_errors(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="is not found"):
        client.infer("nobody", [given()])
    with pytest.raises(InferenceServerException, match="batch-size must be <= 8"):
        client.infer("identity", [given(np.zeros((9, 16), np.float32))])
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'INPUT0'"):
        client.infer("identity", [given(np.zeros((1, 15), np.float32))])
    with pytest.raises(InferenceServerException, match="data-type is 'INT32'"):
        client.infer("identity", [given(np.zeros((1, 16), np.int32), "INT32")])


def test_system_shared_memory(client: triton.InferenceServerClient) -> None:
    key = f"/t{secrets.token_hex(8)}"
    region = shm.create_shared_memory_region("region", key, 128)
    try:
        shm.set_shared_memory_region(region, [SIXTEEN])
        client.register_system_shared_memory("region", key, 128)
        (row,) = client.get_system_shared_memory_status("region")
        assert (row["name"], row["byte_size"], row["offset"]) == ("region", 128, 0)
        asked = triton.InferInput("INPUT0", [1, 16], "FP32")
        asked.set_shared_memory("region", 64)
        output = triton.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("region", 64, offset=64)
        result = client.infer("identity", [asked], outputs=[output])
        assert "data" not in result.get_output("OUTPUT0")
        found = shm.get_contents_as_numpy(region, np.float32, [2, 16])
        assert np.array_equal(found, np.concatenate([SIXTEEN, SIXTEEN]))
        with pytest.raises(InferenceServerException, match="already in manager"):
            client.register_system_shared_memory("region", key, 128)
        client.unregister_system_shared_memory("region")
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="Unable to find"):
            client.infer("identity", [asked])
    finally:
        shm.destroy_shared_memory_region(region)


def test_cuda_shared_memory_as_without_gpus(client: triton.InferenceServerClient) -> None:
    assert client.get_cuda_shared_memory_status() == []
    handle = base64.b64encode(bytes(64))
    with pytest.raises(InferenceServerException, match="failed to register"):
        client.register_cuda_shared_memory("g", handle, 0, 64)
    with pytest.raises(InferenceServerException, match="valid base64 encoded"):
        client.register_cuda_shared_memory("g", b"x", 0, 64)
    client.unregister_cuda_shared_memory("g")
    client.unregister_cuda_shared_memory()


def test_asyncio_client(url: str) -> None:
    async def scenario() -> None:
        async with triton_aio.InferenceServerClient(url) as client:
            assert await client.is_server_live()
            assert await client.is_model_ready("identity")
            assert not await client.is_model_ready("nobody")
            asked = [client.infer("identity", [given(SIXTEEN + n)]) for n in range(8)]
            for number, result in enumerate(await asyncio.gather(*asked)):
                assert np.array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + number)
            with pytest.raises(InferenceServerException, match="is not found"):
                await client.infer("nobody", [given()])

    asyncio.run(scenario())

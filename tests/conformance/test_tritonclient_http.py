"""Stock tritonclient over HTTP: the options of its calls, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from support.stock_server import Stock

SIXTEEN = np.arange(16, dtype=np.float32).reshape(1, 16)


@pytest.fixture(scope="session")
def url(stock: Stock) -> str:
    return stock.http


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


def test_errors(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="is not found"):
        client.infer("nobody", [given()])
    with pytest.raises(InferenceServerException, match="batch-size must be <= 8"):
        client.infer("identity", [given(np.zeros((9, 16), np.float32))])
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'INPUT0'"):
        client.infer("identity", [given(np.zeros((1, 15), np.float32))])
    with pytest.raises(InferenceServerException, match="data-type is 'INT32'"):
        client.infer("identity", [given(np.zeros((1, 16), np.int32), "INT32")])


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

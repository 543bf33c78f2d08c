"""The error of a model's own is told word for word, whatever its code and whoever asks."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from naiad.protocol.errors import NaiadError
from naiad.testing.server import Server, serve
from support.models import add_python

ANSWER_SECONDS = 20
CODES = range(8)
FAILS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        codes = [int(request.inputs()[0].as_numpy()[0]) for request in requests]
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError("bad thing", code))
            for code in codes
        ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_python(repository, "fails", FAILS, ["I INT32 1"], ["O INT32 1"])
    with serve(repository, arguments=["--http-port", "0", "--grpc-port", "0"]) as server:
        yield server


def given(module: Any, code: int) -> Any:
    tensor = module.InferInput("I", [1], "INT32")
    tensor.set_data_from_numpy(np.array([code], np.int32))
    return tensor


@pytest.mark.parametrize("module", [triton_http, triton_grpc])
def test_over_http_and_grpc(server: Server, module: Any) -> None:
    address = server.http_url.removeprefix("http://")
    address = address if module is triton_http else server.grpc_target
    with module.InferenceServerClient(address) as client:
        for code in CODES:
            with pytest.raises(InferenceServerException) as raised:
                client.infer("fails", [given(module, code)], request_id="7")
            assert raised.value.message() == "bad thing"
        wrong = module.InferInput("I", [1], "INT64")
        wrong.set_data_from_numpy(np.array([1], np.int64))
        with pytest.raises(InferenceServerException, match=r"\[request id: 7\] "):
            client.infer("fails", [wrong], request_id="7")


def test_in_a_stream(server: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc_target) as client:
        client.start_stream(lambda result, error: answers.put(error))
        for code in CODES:
            client.async_stream_infer("fails", [given(triton_grpc, code)], request_id="7")
        for _ in CODES:
            assert answers.get(timeout=ANSWER_SECONDS).message() == "bad thing"
        client.stop_stream()


def test_by_the_own_client(server: Server) -> None:
    with server.client() as client:
        for code in CODES:
            with pytest.raises(NaiadError) as raised:
                client.infer("fails", {"I": np.array([code], np.int32)}, label="7")
            assert raised.value.message == "bad thing"

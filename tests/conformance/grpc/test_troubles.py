"""Troubles that users of such servers have had, asked of this one through stock clients."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from support.grpc_models import floats, tensor
from support.waiting import wait_until

STRINGS = [b"", b"a\0b", b"trailing\0\0", "𝄞".encode(), b"\xff\xfe", b" "]


def asked(target: str, message: Any) -> Any:
    """A request that no client library would make."""
    with grpc.insecure_channel(target) as channel:
        call: Any = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        return call(message, timeout=20)


def request(shape: list[int], *, datatype: str = "FP32", **fields: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name=f"echo_{datatype.lower()}", **fields)
    message.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    return message


@pytest.mark.parametrize("shape", [[-1], [2**62], [2**63 - 1], [-(2**63)], [0], [1, 1]])
def test_shapes_that_lie(target: str, client: Any, shape: list[int]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        asked(target, request(shape, raw_input_contents=[bytes(8)]))

    fault: Any = caught.value
    assert fault.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "INPUT0" in fault.details()
    assert client.infer("echo_fp32", floats(1)).as_numpy("OUTPUT0").tolist() == [1]


def test_strings_byte_for_byte_raw_and_typed(target: str, client: Any) -> None:
    array = np.array(STRINGS, object)
    raw = client.infer("echo_bytes", [tensor("BYTES", array)]).as_numpy("OUTPUT0").tolist()
    message = request([len(STRINGS)], datatype="BYTES")
    message.inputs[0].contents.bytes_contents.extend(STRINGS)

    typed = triton.InferResult(asked(target, message)).as_numpy("OUTPUT0").tolist()

    assert raw == typed == STRINGS


@pytest.mark.parametrize(
    "raw",
    [b"\5\0\0\0ab", b"\xff\xff\xff\xff", b"\1\0", b"\1\0\0\0a\1\0\0\0b", b""],
    ids=["short", "endless", "cut", "more", "none"],
)
def test_strings_that_are_none(target: str, raw: bytes) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        asked(target, request([1], datatype="BYTES", raw_input_contents=[raw]))

    fault: Any = caught.value
    assert fault.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_answers_are_raw_even_to_typed_requests(target: str) -> None:
    message = request([2])
    message.inputs[0].contents.fp32_contents.extend([1, 2])

    answer = asked(target, message)

    assert answer.raw_output_contents == [np.array([1, 2], "<f4").tobytes()]
    assert not answer.outputs[0].HasField("contents")


def test_sixty_four_megabytes_by_default(client: Any) -> None:
    array = np.arange(16 * 2**20, dtype=np.float32)

    assert np.array_equal(
        client.infer("echo_fp32", [tensor("FP32", array)]).as_numpy("OUTPUT0"), array
    )


def test_clients_that_time_out_leave_nothing_in_the_queue(
    target: str, under_way: Callable[[], int]
) -> None:
    def ask(_: int) -> str | None:
        with triton.InferenceServerClient(target) as client:
            try:
                client.infer(
                    "echo_fp32", floats(1), client_timeout=0.5, parameters={"sleep_ms": 60_000}
                )
            except InferenceServerException as fault:
                return str(fault.status())
        return None

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        assert set(pool.map(ask, range(20))) == {"StatusCode.DEADLINE_EXCEEDED"}
    wait_until(lambda: under_way() == 0, "nothing left in the server")


def test_many_streams_that_open_and_close(target: str, under_way: Callable[[], int]) -> None:
    """Half-closed, cancelled, and left with a request."""
    with grpc.insecure_channel(target) as channel:
        open_stream: Any = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        message = request([1], raw_input_contents=[bytes(4)])
        for turn in range(300):
            stream = open_stream(iter([message] * (turn % 3)))
            if turn % 2:
                stream.cancel()
            else:
                assert len(list(stream)) == turn % 3
    wait_until(lambda: under_way() == 0, "nothing left in the server")


def test_a_request_with_all_the_outputs_that_fit(target: str, client: Any) -> None:
    """What is refused for its size must not harm others on the same gateway."""
    for count in (1000, 4000, 8000, 60_000):
        message = request([2], raw_input_contents=[bytes(8)])
        for _ in range(count):
            message.outputs.add()

        with pytest.raises(grpc.RpcError) as caught:
            asked(target, message)

        fault: Any = caught.value
        assert fault.code() is grpc.StatusCode.INVALID_ARGUMENT, fault.details()
        assert client.infer("echo_fp32", floats(1)).as_numpy("OUTPUT0").tolist() == [1]

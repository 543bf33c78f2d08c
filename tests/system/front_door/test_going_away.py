"""Clients that time out, hang up and vanish, through both doors: no work is left behind."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from naiad.client import Client
from naiad.testing.server import Server
from support.front_door import LENGTH, Given, GrpcDoor, HttpDoor, binary_request, grpc_request
from support.waiting import wait_until

ONE = Given("INPUT0", "FP32", [1], struct.pack("<f", 1))
MINUTE = {"sleep_ms": 60_000}
CLIENTS = 20
STREAMS = 1000


GUEST = """
import struct, sys
import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

def messages():
    for _ in range(10):
        message = service_pb2.ModelInferRequest(model_name="fp32")
        message.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
        message.raw_input_contents.append(bytes(4))
        message.parameters["sleep_ms"].int64_param = 60_000
        yield message
    sys.stdin.read()

stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(sys.argv[1]))
list(stub.ModelStreamInfer(messages()))
"""
"""Asks for ten minutes in one stream and waits."""


@pytest.fixture
def under_way(native: Client) -> Iterator[Callable[[], int]]:
    """How many requests nobody has answered; none before and after."""

    def count() -> int:
        models = native.status()["models"]
        return sum(int(model["queued"] + model["executing"]) for model in models)

    assert count() == 0
    yield count
    wait_until(lambda: count() == 0, "no request left in the server")


def gateway_descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pids['gateway-0']}/fd").iterdir()))


def floats(value: float = 1) -> list[Any]:
    tensor = triton.InferInput("INPUT0", [1], "FP32")
    return [tensor.set_data_from_numpy(np.array([value], np.float32))]


def test_grpc_clients_that_time_out_leave_nothing_in_the_queue(
    grpc_door: GrpcDoor, under_way: Callable[[], int]
) -> None:
    def ask(_: int) -> str | None:
        with triton.InferenceServerClient(grpc_door.target) as client:
            try:
                client.infer("fp32", floats(), client_timeout=0.5, parameters=MINUTE)
            except InferenceServerException as fault:
                return str(fault.status())
        return None

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert set(pool.map(ask, range(CLIENTS))) == {"StatusCode.DEADLINE_EXCEEDED"}
    wait_until(lambda: under_way() == 0, "nothing left in the server")


def test_http_clients_that_hang_up_leave_nothing_in_the_queue(
    http: HttpDoor, server: Server, under_way: Callable[[], int]
) -> None:
    before = gateway_descriptors(server)
    text, blobs = binary_request([ONE], parameters=MINUTE)
    head = f"POST /v2/models/fp32/infer HTTP/1.1\r\nHost: h\r\n{LENGTH}: {len(text)}\r\n"
    head += f"Content-Length: {len(text + blobs)}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for number in range(CLIENTS):
            one = stack.enter_context(socket.create_connection(http.address))
            one.sendall(head.encode() + text + blobs)
            if number % 2:  # these end with a reset
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: under_way() == CLIENTS, "all of them in the server")
    wait_until(lambda: under_way() == 0, "nothing left in the server")
    wait_until(lambda: gateway_descriptors(server) <= before, "no connection left")


@pytest.fixture
def stream(grpc_door: GrpcDoor) -> Any:
    """Opens a stream of these messages."""
    return grpc_door.stub.ModelStreamInfer


def test_a_stream_that_is_half_closed_after_a_hundred_requests_gets_its_answers(
    stream: Any, under_way: Callable[[], int]
) -> None:
    messages = [
        grpc_request("fp32", [Given("INPUT0", "FP32", [1], struct.pack("<f", number))])
        for number in range(100)
    ]
    answers = list(stream(iter(messages), timeout=20))
    assert not any(one.error_message for one in answers)
    found = [one.infer_response.raw_output_contents[0] for one in answers]
    assert found == [message.raw_input_contents[0] for message in messages]


def test_every_answer_of_an_ordinary_model_is_its_final_one(stream: Any) -> None:
    """Streams of models with one answer each: data and end are told in the same item."""
    (answer,) = stream(iter([grpc_request("fp32", [ONE])]), timeout=20)
    assert answer.infer_response.parameters["triton_final_response"].bool_param


def test_an_error_in_a_stream_is_an_item_and_the_stream_goes_on(stream: Any) -> None:
    bad = grpc_request("fp32", [Given("INPUT0", "FP32", [2], ONE.data)])
    nobody = grpc_request("nobody", [ONE])
    good = grpc_request("fp32", [ONE])
    answers = list(stream(iter([bad, good, nobody, good]), timeout=20))
    assert [bool(one.error_message) for one in answers] == [True, False, True, False]


def test_a_stream_whose_client_is_killed_is_cancelled_whole(
    server: Server, under_way: Callable[[], int]
) -> None:
    before = gateway_descriptors(server)
    command = [sys.executable, "-c", GUEST, server.grpc_target]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as guest:
        wait_until(lambda: under_way() == 10, "ten requests in the server")
        guest.kill()
    wait_until(lambda: under_way() == 0, "none in the server")
    wait_until(lambda: gateway_descriptors(server) <= before, "no connection left")


def test_a_thousand_streams_that_open_and_close_leave_nothing(
    stream: Any, server: Server, under_way: Callable[[], int]
) -> None:
    before = gateway_descriptors(server)
    message = grpc_request("fp32", [ONE])
    for turn in range(STREAMS):
        one = stream(itertools.repeat(message, turn % 3))
        if turn % 2:
            one.cancel()
        else:
            assert len(list(one)) == turn % 3
    wait_until(lambda: under_way() == 0, "nothing left in the server")
    assert gateway_descriptors(server) <= before

"""Clients that misbehave on a real port: what they get, and that nobody else notices."""

from __future__ import annotations

import contextlib
import itertools
import queue
import random
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from naiad.gateway.http2 import frames as f
from naiad.gateway.http2.hpack import encoded
from naiad.gateway.limits import Limits
from naiad.gateway.listener import CHECK_SECONDS
from naiad.testing.server import Server
from support.grpc_listener import Listener
from support.grpc_models import floats
from support.waiting import wait_until

PATIENCE_S = 20
ROUNDS = 300
MESSAGES = 1000
INFER = encoded(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)
WHOLE = b"".join(
    (
        f.PREFACE,
        f.settings({}),
        f.frame(f.HEADERS, f.END_HEADERS, 1, INFER),
        f.frame(f.DATA, f.END_STREAM, 1, b"\0\0\0\0\x04\x0a\x02no"),
    )
)


@pytest.fixture(scope="module")
def listener(server: Server) -> Iterator[Listener]:
    with Listener(server.run_dir, limits=Limits(header_seconds=0.3)) as listener:
        yield listener


def connected(listener: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE_S)


def received(one: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    while piece := one.recv(65_536):
        found += piece
    return found


def is_well(listener: Listener) -> bool:
    with triton.InferenceServerClient(listener.target) as client:
        answer: list[float] = client.infer("echo_fp32", floats(1)).as_numpy("OUTPUT0").tolist()
    return answer == [1]


def test_bare_frames_are_answered(listener: Listener) -> None:
    with connected(listener) as one:
        one.sendall(WHOLE)
        found = b""
        while b"naiad-code" not in found:
            piece = one.recv(65_536)
            assert piece, found
            found += piece
    assert b"Request for unknown model: 'no' is not found" in found
    assert b"not_found" in found


def test_http_1_is_told_what_this_port_is(listener: Listener) -> None:
    with connected(listener) as one:
        one.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")

        assert b"this port speaks gRPC" in received(one)


@pytest.mark.parametrize("first", [b"", f.PREFACE[:10]])
def test_a_client_that_never_begins_is_closed(listener: Listener, first: bytes) -> None:
    with connected(listener) as one:
        one.sendall(first)
        one.settimeout(CHECK_SECONDS + PATIENCE_S)

        with contextlib.suppress(ConnectionResetError):
            received(one)


def test_mutated_connections(listener: Listener) -> None:
    """Any bytes: an answer, a goodbye or nothing, and other clients go on."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        data = bytearray(WHOLE)
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(len(f.PREFACE), len(data))] = dice.randrange(256)
        if dice.random() < 0.3:
            del data[dice.randrange(len(data)) :]
        with connected(listener) as one:
            one.sendall(data)
            if dice.random() < 0.5:
                one.shutdown(socket.SHUT_WR)
                received(one)
    assert is_well(listener), f"seed {seed}"
    wait_until(lambda: not listener.server.connections, f"no connection left, seed {seed}")
    assert listener.plane.calls.count == 0
    assert listener.plane.budget.bytes == 0


def test_a_thousand_clients_that_vanish_leave_nothing(listener: Listener) -> None:
    for _ in range(1000):
        with connected(listener) as one:
            one.sendall(WHOLE[:-6])
    wait_until(lambda: not listener.server.connections, "no connection left")
    assert listener.plane.budget.bytes == 0
    assert is_well(listener)


def test_a_client_that_reads_nothing(listener: Listener) -> None:
    with connected(listener) as one:
        one.sendall(WHOLE)
        pings = f.frame(f.PING, 0, 0, bytes(8)) * 100
        heads = (
            f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, stream, INFER)
            for stream in itertools.count(3, 2)
        )

        with contextlib.suppress(OSError):
            one.sendall(b"".join(pings + next(heads) for _ in range(12_000)))
        wait_until(lambda: not listener.server.connections, "given up, though it is there")
    assert is_well(listener)


def test_mutated_messages(listener: Listener) -> None:
    """Any message: an answer or a fault of the caller, never ours, and the session goes on."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    with grpc.insecure_channel(listener.target) as channel:
        infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(MESSAGES):
            data = bytearray(message(dice))
            for _ in range(dice.randrange(4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            try:
                infer(bytes(data), timeout=PATIENCE_S)
            except grpc.RpcError as fault:
                error: Any = fault
                assert error.code() not in (
                    grpc.StatusCode.INTERNAL,
                    grpc.StatusCode.UNKNOWN,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                ), f"seed {seed}: {error.details()} for {bytes(data)!r}"
    assert is_well(listener), f"seed {seed}"


def message(dice: random.Random) -> bytes:
    """A request with a little of everything, right or nearly so."""
    found = service_pb2.ModelInferRequest(model_name="echo_fp32", id="i")
    shape = dice.choice([[2], [0], [-1], [2**62], [-(2**63)], [1, 1]])
    one = found.inputs.add(name="INPUT0", datatype="FP32", shape=shape)
    match dice.randrange(3):
        case 0:
            found.raw_input_contents.append(bytes(dice.choice([0, 4, 8])))
        case 1:
            one.contents.fp32_contents.extend([1, 2])
        case _:
            one.parameters["shared_memory_region"].string_param = "r"
            one.parameters["shared_memory_byte_size"].int64_param = dice.choice([8, 2**63 - 1])
    if dice.random() < 0.5:
        out = found.outputs.add(name="OUTPUT0")
        out.parameters["classification"].int64_param = dice.choice([0, 1, 2**40])
    name = dice.choice(["priority", "sequence_id", "mine", "triton_x"])
    found.parameters[name].int64_param = dice.choice([0, 1, -1, 2**63 - 1])
    serialised: bytes = found.SerializeToString()
    return serialised


def test_answers_that_nobody_takes_are_in_the_budget(listener: Listener) -> None:
    """And out of it when their client goes."""
    size = 100_000
    message = service_pb2.ModelInferRequest(model_name="echo_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[size])
    message.raw_input_contents.append(bytes(4 * size))
    data = message.SerializeToString()
    body = b"\0" + len(data).to_bytes(4, "big") + data
    frames = [body[start : start + 16_000] for start in range(0, len(body), 16_000)]
    with connected(listener) as one:
        one.sendall(f.PREFACE + f.settings({f.INITIAL_WINDOW_SIZE: 0}))
        one.sendall(f.frame(f.HEADERS, f.END_HEADERS, 1, INFER))
        for part in frames[:-1]:
            one.sendall(f.frame(f.DATA, 0, 1, part))
        one.sendall(f.frame(f.DATA, f.END_STREAM, 1, frames[-1]))
        wait_until(lambda: not listener.plane.calls.count, "the answer")
        wait_until(lambda: listener.plane.budget.bytes > 4 * size, "it is counted")
    wait_until(lambda: listener.plane.budget.bytes == 0, "it is forgotten")


@pytest.fixture(scope="module")
def narrow(server: Server) -> Iterator[Listener]:
    with Listener(server.run_dir, limits=Limits(bytes_in_flight_max=4 * 2**20)) as listener:
        yield listener


@pytest.mark.parametrize("way", ["unary", "stream"])
def test_what_is_decompressed_is_in_the_budget(narrow: Listener, way: str) -> None:
    """Few bytes may become a thousand times as many."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton.InferenceServerClient(narrow.target) as client:
        if way == "stream":
            client.start_stream(
                lambda result, error: answers.put(error or result), compression_algorithm="gzip"
            )

        def ask(count: int) -> Any:
            inputs = floats(*[0.0] * count)
            if way == "stream":
                client.async_stream_infer("echo_fp32", inputs)
                return answers.get(timeout=PATIENCE_S)
            try:
                return client.infer("echo_fp32", inputs, compression_algorithm="gzip")
            except InferenceServerException as fault:
                return fault

        assert ask(1000).as_numpy("OUTPUT0").tolist() == [0.0] * 1000
        wait_until(lambda: narrow.plane.budget.bytes == 0, "it is given back")
        refused = str(ask(2 * 2**20))
        assert "of requests are in flight in this gateway, at most 4194304" in refused
    wait_until(lambda: narrow.plane.budget.bytes == 0, "it is given back")

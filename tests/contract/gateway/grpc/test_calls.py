"""What a gRPC call may be and where it ends: health, reflection, cancellation, limits, access."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.utils import InferenceServerException

from naiad.gateway.access import Access
from naiad.gateway.grpc_codec.head import CODE_KEY, DETAILS_BYTES_MAX, details
from naiad.gateway.grpc_server import Options
from naiad.gateway.limits import Limits
from naiad.testing.server import Server
from support.grpc_listener import Listener
from support.grpc_models import floats, tensor
from support.waiting import wait_until

public: Any = health_pb2  # its stubs are older than it
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PATIENCE_S = 15


@pytest.fixture(scope="module")
def listener(server: Server) -> Iterator[Listener]:
    with Listener(server.run_dir) as listener:
        yield listener


@pytest.fixture
def channel(listener: Listener) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(listener.target) as channel:
        yield channel


def queued(server: Server) -> int:
    with server.client() as client:
        (model,) = client.status()["models"]
        return int(model["queued"] + model["executing"])


def ignored(result: Any, error: Any) -> None:
    """Of a call whose answer does not matter."""


# --- health and reflection ----------------------------------------------------------------------


def test_health_check_and_list(channel: grpc.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)

    for service in ("", "inference.GRPCInferenceService", "whatever"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request).status == SERVING
    statuses = health.List(public.HealthListRequest()).statuses
    assert statuses[""].status == SERVING


def test_health_watch_tells_of_every_change(server: Server) -> None:
    with (
        Listener(server.run_dir) as listener,
        grpc.insecure_channel(listener.target) as channel,
        grpc.insecure_channel(listener.target) as other,
    ):
        watchers = [watched(channel), watched(other)]
        for states in watchers:
            assert next(states).status == SERVING

        listener.phase.leave()

        for states in watchers:
            assert next(states).status == NOT_SERVING
            states.cancel()
        wait_until(lambda: listener.server.watcher_count == 0, "no watcher left")


def watched(channel: grpc.Channel) -> Any:
    health: Any = health_pb2_grpc.HealthStub(channel)
    return health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)


def test_reflection_describes_the_service(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)

    assert set(database.get_services()) == {
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for name in database.get_services():
        assert DescriptorPool(database).FindServiceByName(name).full_name == name
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    assert len(service.methods) == 20
    assert "max_batch_size" in pool.FindMessageTypeByName("inference.ModelConfig").fields_by_name
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("inference.Nothing")


# --- cancellation and deadlines -----------------------------------------------------------------


def test_a_cancelled_call_leaves_the_queue(server: Server, listener: Listener) -> None:
    with triton.InferenceServerClient(listener.target) as client:
        calls = [
            client.async_infer(
                "echo_fp32",
                floats(1),
                callback=ignored,
                parameters={"sleep_ms": 60_000},
            )
            for _ in range(10)
        ]
        wait_until(lambda: queued(server) == 10, "ten requests in the server")

        for call in calls:
            call.cancel()

        wait_until(lambda: queued(server) == 0, "none in the server")
        assert listener.plane.calls.count == 0


def test_a_deadline_reaches_the_queue_and_the_worker(server: Server, listener: Listener) -> None:
    with triton.InferenceServerClient(listener.target) as client:
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer(
                "echo_fp32", floats(1), client_timeout=0.2, parameters={"sleep_ms": 60_000}
            )

        wait_until(lambda: queued(server) == 0, "the request gone")


def test_a_client_that_vanishes_is_noticed(server: Server, listener: Listener) -> None:
    client = triton.InferenceServerClient(listener.target)
    client.async_infer("echo_fp32", floats(1), callback=ignored, parameters={"sleep_ms": 60_000})
    wait_until(lambda: queued(server) == 1, "the request in the server")

    client._channel.close()

    wait_until(lambda: queued(server) == 0, "the request gone")


# --- limits -------------------------------------------------------------------------------------


def test_a_message_over_the_limit(server: Server) -> None:
    with (
        Listener(server.run_dir, limits=Limits(body_bytes_max=100_000)) as listener,
        triton.InferenceServerClient(listener.target) as client,
    ):
        large = [tensor("FP32", np.zeros(100_000, np.float32))]
        for options in ({}, {"compression_algorithm": "gzip"}):
            with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED"):
                client.infer("echo_fp32", large, **options)
        assert client.infer("echo_fp32", floats(1)).as_numpy("OUTPUT0").tolist() == [1]


@pytest.mark.parametrize(
    "limits",
    [Limits(requests_in_flight_max=2), Limits(bytes_in_flight_max=400)],
    ids=["requests", "bytes"],
)
def test_a_gateway_that_has_enough_is_exhausted_not_unavailable(
    server: Server, limits: Limits
) -> None:
    with (
        Listener(server.run_dir, limits=limits) as listener,
        triton.InferenceServerClient(listener.target) as client,
    ):
        calls = [
            client.async_infer(
                "echo_fp32",
                floats(1),
                callback=ignored,
                parameters={"sleep_ms": 60_000},
            )
            for _ in range(2)
        ]
        wait_until(lambda: listener.plane.calls.count == 2, "two requests under way")

        with pytest.raises(InferenceServerException, match="in flight in this gateway") as caught:
            client.infer("echo_fp32", floats(*range(100)), parameters={"sleep_ms": 60_000})

        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        for call in calls:
            call.cancel()
        wait_until(lambda: listener.plane.calls.count == 0, "none under way")


def test_a_long_text_still_arrives(listener: Listener) -> None:
    text = "ü\n" * 3000
    with (
        triton.InferenceServerClient(listener.target) as client,
        pytest.raises(InferenceServerException) as caught,
    ):
        client.infer("echo_fp32", floats(1), parameters={"raise": text})

    assert caught.value.status() == "StatusCode.INTERNAL"
    assert "ü\n" * 100 in caught.value.message()


@pytest.mark.parametrize("text", ["", "short", "x" * 8000, "%" * 8000, "𝄞" * 8000])
def test_details_are_cut_to_what_travels(text: str) -> None:
    quoted = details(text)

    assert text.startswith(unquote(quoted))
    assert len(quoted) <= DETAILS_BYTES_MAX
    assert bool(quoted) is bool(text)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady", "ModelConfig", "RepositoryIndex"])
def test_bytes_that_are_no_message(channel: grpc.Channel, method: str) -> None:
    call: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")

    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff")

    fault: Any = caught.value
    assert fault.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be decoded" in fault.details()
    assert dict(fault.trailing_metadata())[CODE_KEY.decode()] == "invalid_argument"


def test_a_method_that_nobody_has(channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary("/inference.GRPCInferenceService/Nothing")

    with pytest.raises(grpc.RpcError) as caught:
        call(b"")

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# --- who may ask what ---------------------------------------------------------------------------


def test_what_is_for_this_machine_alone(server: Server) -> None:
    """Access as a caller from elsewhere has it."""
    with (
        Listener(server.run_dir, access=Access(client_shm="false", management="false")) as listener,
        triton.InferenceServerClient(listener.target) as client,
    ):
        one = triton.InferInput("INPUT0", [4], "FP32")
        one.set_shared_memory("r", 16)
        refused: list[tuple[Any, str]] = [
            (lambda: client.load_model("echo_fp32"), "PERMISSION_DENIED"),
            (lambda: client.unload_model("echo_fp32"), "PERMISSION_DENIED"),
            (lambda: client.update_log_settings({}), "PERMISSION_DENIED"),
            (lambda: client.get_trace_settings(), "PERMISSION_DENIED"),
            (lambda: client.register_system_shared_memory("r", "/k", 8), "UNIMPLEMENTED"),
            (lambda: client.unregister_system_shared_memory(), "UNIMPLEMENTED"),
            (lambda: client.get_system_shared_memory_status(), "UNIMPLEMENTED"),
            (lambda: client.infer("echo_fp32", [one]), "UNIMPLEMENTED"),
        ]
        for ask, status in refused:
            with pytest.raises(InferenceServerException) as caught:
                ask()
            assert caught.value.status() == f"StatusCode.{status}"
        assert client.infer("echo_fp32", floats(1)).as_numpy("OUTPUT0").tolist() == [1]
        assert client.is_model_ready("echo_fp32")


def test_a_unix_socket(server: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = tmp_path_factory.mktemp("s") / "g.sock"
    with (
        Listener(server.run_dir, address=f"unix:{path}") as listener,
        triton.InferenceServerClient(listener.target) as client,
    ):
        client.unload_model("nobody")  # as local as can be
        assert client.infer("echo_fp32", floats(1)).as_numpy("OUTPUT0").tolist() == [1]


def test_headers_become_parameters_where_asked_for(server: Server) -> None:
    with (
        Listener(server.run_dir, options=Options(header_pattern="^raise$")) as listener,
        triton.InferenceServerClient(listener.target) as client,
    ):
        with pytest.raises(InferenceServerException, match="from a header"):
            client.infer("echo_fp32", floats(1), headers={"raise": "from a header"})
        assert client.infer("echo_fp32", floats(1), headers={"other": "x"}) is not None


# --- the end ------------------------------------------------------------------------------------


def test_a_drain_finishes_what_runs_and_refuses_the_rest(server: Server) -> None:
    listener = Listener(server.run_dir)
    results: list[Any] = []
    answered = threading.Event()

    def done(result: Any, error: Any) -> None:
        results.append(error or result.as_numpy("OUTPUT0").tolist())
        answered.set()

    with triton.InferenceServerClient(listener.target) as client:
        client.async_infer("echo_fp32", floats(7), callback=done, parameters={"sleep_ms": 700})
        wait_until(lambda: listener.plane.calls.count == 1, "the request under way")

        assert listener.call(listener.end(0.1, PATIENCE_S), 2 * PATIENCE_S) is True

        assert answered.wait(PATIENCE_S)
        assert results == [[7.0]]
        with pytest.raises(InferenceServerException) as caught:
            client.infer("echo_fp32", floats(1))
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
    listener.close()


def test_during_the_grace_period_all_is_served_but_nothing_is_ready(server: Server) -> None:
    with (
        Listener(server.run_dir) as listener,
        triton.InferenceServerClient(listener.target) as client,
    ):
        listener.phase.leave()

        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("echo_fp32")
        assert client.infer("echo_fp32", floats(1)).as_numpy("OUTPUT0").tolist() == [1]

        listener.phase.close()

        for ask in (
            client.is_server_ready,
            client.get_server_metadata,
            client.get_model_repository_index,
            lambda: client.infer("echo_fp32", floats(1)),
            lambda: client.infer("nobody_knows", floats(1)),
        ):
            with pytest.raises(InferenceServerException, match="Server exiting") as caught:
                ask()
            assert caught.value.status() == "StatusCode.UNAVAILABLE"


def test_a_drain_answers_what_a_stream_has_asked_and_ends_it(server: Server) -> None:
    listener = Listener(server.run_dir)
    answers: list[Any] = []
    ended = threading.Event()

    def done(result: Any, error: Any) -> None:
        answers.append(error or float(result.as_numpy("OUTPUT0")[0]))
        if error:
            ended.set()

    with triton.InferenceServerClient(listener.target) as client:
        client.start_stream(done)
        for value in (1, 2):
            client.async_stream_infer("echo_fp32", floats(value), parameters={"sleep_ms": 300})
        wait_until(lambda: listener.plane.calls.count == 2, "both requests under way")

        assert listener.call(listener.end(0, PATIENCE_S), 2 * PATIENCE_S) is True

        assert ended.wait(PATIENCE_S)
        assert answers[:2] == [1, 2]
        assert answers[2].status() == "StatusCode.UNAVAILABLE"
        assert "Server exiting" in answers[2].message()
    listener.close()


def test_a_drain_that_takes_too_long_cancels(server: Server) -> None:
    listener = Listener(server.run_dir)
    with triton.InferenceServerClient(listener.target) as client:
        client.async_infer(
            "echo_fp32", floats(7), callback=ignored, parameters={"sleep_ms": 60_000}
        )
        wait_until(lambda: listener.plane.calls.count == 1, "the request under way")

        assert listener.call(listener.end(0, 0.2), PATIENCE_S) is False
    wait_until(lambda: queued(server) == 0, "the request gone")
    listener.close()

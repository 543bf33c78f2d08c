"""Many users behind one client: one floods the server, another is served all the same."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.grpc as grpc
from grpc import RpcError, insecure_channel
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from naiad.client import Client
from naiad.protocol.messages import Parameters
from naiad.testing.server import Server, serve
from support.models import add_echo
from support.waiting import wait_until

ROWS = 4
SLEEP_MS = 10
FLOOD = 2_000
BUDGET = 40
BATCHES_MAX = 8
"""That may run between a polite user's request and its answer: one or two that were under way, his
own, and those that run while this test looks."""
BATCHING = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
ARRAYS = {"INPUT0": np.zeros((1, 16), np.float32)}
SLOW: Parameters = {"sleep_ms": float(SLEEP_MS)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for name in ("echo", "held"):
        add_echo(repository, name, max_batch_size=ROWS, extra=BATCHING)
    options = ["--spares", "0", "--http-port", "0", "--grpc-port", "0"]
    options += ["--user-header", "X-User", "--user-requests-max", str(BUDGET)]
    with serve(repository, arguments=options) as server:
        yield server


def row(client: Client, model: str = "echo") -> dict[str, Any]:
    rows = client.status()["models"]
    return {key: value for one in rows if one["name"] == model for key, value in one.items()}


def is_idle(client: Client) -> bool:
    found = row(client, "held")
    return not found["queued"] and not found["executing"]


def executions(client: Client) -> int:
    return int(client.statistics("echo")["model_stats"][0]["execution_count"])


class Http:
    """One connection; `ask` and `answer` apart, so that many can wait at once."""

    def __init__(self, server: Server) -> None:
        place = urlsplit(server.http_url)
        self.socket = socket.create_connection((place.hostname, place.port), timeout=20)

    def ask(
        self, user: str, model: str = "echo", *, binary: bool = False, **parameters: Any
    ) -> None:
        tensor: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16]}
        data = bytes(64) if binary else b""
        extra: dict[str, Any] = {"parameters": {"binary_data_size": 64}}
        tensor |= extra if binary else {"data": [0.0] * 16}
        if binary:
            parameters["binary_data_output"] = True
        text = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nX-User: {user}\r\n"
        if binary:
            head += f"Inference-Header-Content-Length: {len(text)}\r\n"
        head += f"Content-Length: {len(text) + len(data)}\r\n\r\n"
        self.socket.sendall(head.encode("latin-1") + text + data)

    def answer(self) -> tuple[int, str]:
        """Status and head; what comes of the body is not looked at."""
        text = self.socket.recv(65_536).decode("latin-1")
        return int(text.split(" ", 2)[1]), text

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def flood(server: Server) -> Iterator[list[Http]]:
    """A greedy user's requests over HTTP, as many as he may have, of a model that takes long."""
    connections = [Http(server) for _ in range(BUDGET)]
    with Client(server.run_dir) as looking:
        for one in connections:
            one.ask("greedy", "held", sleep_ms=60_000)
        wait_until(
            lambda: row(looking, "held")["queued"] + row(looking, "held")["executing"] == BUDGET,
            "the flood is there",
        )
        yield connections
        for one in connections:
            one.close()
        wait_until(lambda: is_idle(looking), "what nobody waits for is gone")


def test_a_user_that_is_named_twice_is_refused(server: Server) -> None:
    """Else a client behind a proxy that adds a header could be somebody new with every request."""
    one = Http(server)
    for _ in range(2):  # a head that is known already, too
        one.ask("ada\r\nX-User: eve")
        status, text = one.answer()
        assert (status, "header 'x-user' is there more than once" in text) == (400, True)
    one.close()
    with insecure_channel(server.grpc_target) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        twice = (("x-user", "ada"), ("x-user", "eve"))
        with pytest.raises(RpcError, match="x-user' is there more than once"):
            stub.ModelInfer(service_pb2.ModelInferRequest(model_name="echo"), metadata=twice)


@pytest.mark.parametrize("fast", [False, True], ids=["json", "template"])
def test_a_polite_users_request_is_in_one_of_the_next_batches(server: Server, fast: bool) -> None:
    with Client(server.run_dir) as greedy, Client(server.run_dir) as polite:
        asked = [
            greedy.submit("echo", ARRAYS, fairness_key="greedy", parameters=SLOW)
            for _ in range(FLOOD)
        ]
        wait_until(lambda: row(polite)["queued"] > FLOOD // 2, "the greedy user's are queued")
        before = executions(polite)
        polite.infer("echo", ARRAYS, fairness_key="polite")
        assert executions(polite) - before <= BATCHES_MAX
        connection = Http(server)
        for _ in range(3):  # the third one is filled into a template, if any is
            before = executions(polite)
            connection.ask("polite", binary=fast)
            assert connection.answer()[0] == 200
            assert executions(polite) - before <= BATCHES_MAX
        connection.close()
        assert row(polite)["queued"] > FLOOD // 4, "it was a flood to the end"
        for future in asked:
            future.cancel()


def test_a_user_over_his_budget_is_told_to_come_again_and_others_are_served(
    server: Server, flood: list[Http]
) -> None:
    more = Http(server)
    for binary in (False, True):
        more.ask("greedy", binary=binary)
        status, text = more.answer()
        assert status == 429
        assert "\r\nRetry-After: 1\r\n" in text
        more.ask("polite", binary=binary, priority=1)
        assert more.answer()[0] == 200
    more.close()


def streamed(server: Server, user: str, given: grpc.InferInput) -> Exception | None:
    """The error of one request on a stream, None when it is served."""
    found: list[Exception | None] = []
    with grpc.InferenceServerClient(server.grpc_target) as client:
        client.start_stream(lambda result, error: found.append(error), headers={"x-user": user})
        client.async_stream_infer("echo", [given])
        wait_until(lambda: bool(found), "the stream's answer")
        client.stop_stream()
    (error,) = found
    return error


def test_the_same_over_grpc_and_its_streams(server: Server, flood: list[Http]) -> None:
    given = grpc.InferInput("INPUT0", [1, 16], "FP32")
    given.set_data_from_numpy(ARRAYS["INPUT0"])
    with grpc.InferenceServerClient(server.grpc_target) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer("echo", [given], headers={"x-user": "greedy"})
        assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert "greedy" not in str(refused.value)
        client.infer("echo", [given], headers={"x-user": "polite"})
        with pytest.raises(InferenceServerException) as refused:
            client.infer("echo", [given], headers={"x-user": "x" * 300})
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert streamed(server, "polite", given) is None
    error = streamed(server, "greedy", given)
    assert "user budget" in str(error)


def test_who_goes_away_has_his_budget_back(server: Server, flood: list[Http]) -> None:
    for one in flood:
        one.close()
    with Client(server.run_dir) as looking:
        wait_until(lambda: is_idle(looking), "requests are cancelled, running ones too")
    again = Http(server)
    again.ask("greedy")
    assert again.answer()[0] == 200
    again.close()


def test_a_header_that_is_no_key_is_refused(server: Server) -> None:
    connection = Http(server)
    connection.ask("x" * 257)
    status, text = connection.answer()
    assert status == 400
    assert "header 'x-user': expected at most 256 bytes" in text
    connection.close()

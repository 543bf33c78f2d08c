"""The front door over HTTP: every route, disconnects, a killed gateway, the end."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.testing.server import Server, ServerFailed, serve
from support import chaos_server
from support.named_region import NamedRegion
from support.repositories import add_identity
from support.waiting import wait_until

SIXTEEN = struct.pack("<16f", *range(16))
BINARY = {
    "name": "INPUT0",
    "shape": [1, 16],
    "datatype": "FP32",
    "parameters": {"binary_data_size": 64},
}


class Caller:
    """One HTTP connection."""

    def __init__(self, server: Server, timeout: float = 20.0) -> None:
        place = urlsplit(server.http_url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout)

    def __call__(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """(status, body: parsed when it is JSON alone, headers)."""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, named)
        answer = self._connection.getresponse()
        found: Any = answer.read()
        given = {name.lower(): value for name, value in answer.getheaders()}
        if (
            given.get("content-type") == "application/json"
            and "content-encoding" not in given
            and found
        ):
            found = json.loads(found)
        return answer.status, found, given

    def infer(
        self, model: str = "identity", body: bytes = SIXTEEN, **more: Any
    ) -> tuple[int, Any, dict[str, str]]:
        text = json.dumps({"inputs": [BINARY], **more}).encode()
        return self(
            "POST",
            f"/v2/models/{model}/infer",
            text + body,
            Inference_Header_Content_Length=str(len(text)),
        )

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("http")
    add_identity(repository, "identity", max_batch_size=8)
    add_identity(repository, "spare", max_batch_size=8)
    arguments = ["--http-port", "0", "--control-mode", "explicit", "--load-model", "identity"]
    with serve(repository, arguments=arguments) as running:
        yield running


@pytest.fixture
def call(server: Server) -> Iterator[Caller]:
    caller = Caller(server)
    yield caller
    caller.close()


def test_health(call: Caller) -> None:
    assert call("GET", "/v2/health/live")[:2] == (200, b"")
    assert call("GET", "/v2/health/ready")[:2] == (200, b"")
    assert call("GET", "/v2/models/identity/ready")[0] == 200
    assert call("GET", "/v2/models/identity/versions/1/ready")[0] == 200
    for path in ("identity/versions/9", "nobody"):
        status, found, _ = call("GET", f"/v2/models/{path}/ready")
        assert (status, found) == (400, {"error": "Model version not ready"})


def test_what_there_is(call: Caller, server: Server) -> None:
    found = call("GET", "/v2?x=1")[1]
    assert found["name"] == server.name
    assert {"statistics", "binary_tensor_data"} <= set(found["extensions"])
    assert call("GET", "/v2/models/identity/versions/1")[1]["versions"] == ["1"]
    assert call("GET", "/v2/models/identity/config")[1]["max_batch_size"] == 8
    assert call("GET", "/v2/models/identity/stats")[1]["model_stats"][0]["name"] == "identity"
    assert len(call("GET", "/v2/models/stats")[1]["model_stats"]) >= 1
    status, found, _ = call("GET", "/v2/models/nobody/config")
    assert (status, found["error"]) == (404, "Request for unknown model: 'nobody' is not found")
    assert call("GET", "/v2/models/nobody/stats")[0] == 400


def test_wrong_paths_and_verbs(call: Caller) -> None:
    assert call("GET", "/v3")[:2] == (404, {"error": "Not Found"})
    status, found, headers = call("GET", "/v2/repository/index")
    assert (status, found, headers["allow"]) == (405, {"error": "Method Not Allowed"}, "POST")
    assert call("HEAD", "/v2/health/live")[:2] == (405, b"")
    for verb in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert call(verb, "/v2")[0] == 405


def test_json_and_binary_give_the_same(call: Caller) -> None:
    given = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": list(range(16))}
    status, found, _ = call("POST", "/v2/models/identity/infer", {"inputs": [given], "id": "a"})
    assert (status, found["id"], found["model_version"]) == (200, "a", "1")
    assert found["outputs"][0]["data"] == list(range(16))
    wanted = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    status, body, headers = call.infer(outputs=wanted)
    length = int(headers["inference-header-content-length"])
    assert (status, body[length:]) == (200, SIXTEEN)
    assert call.infer()[1]["outputs"][0]["data"] == list(range(16))
    status, body, headers = call(
        "POST", "/v2/models/identity/infer", SIXTEEN, Inference_Header_Content_Length="0"
    )
    assert (status, body[int(headers["inference-header-content-length"]) :]) == (200, SIXTEEN)


def test_compression_both_ways(call: Caller) -> None:
    text = json.dumps({"inputs": [BINARY]}).encode()
    status, found, headers = call(
        "POST",
        "/v2/models/identity/infer",
        gzip.compress(text + SIXTEEN),
        Inference_Header_Content_Length=str(len(text)),
        Content_Encoding="gzip",
        Accept_Encoding="gzip",
    )
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert json.loads(gzip.decompress(found))["outputs"][0]["data"] == list(range(16))
    status, found, headers = call("POST", "/v2/models/identity/infer", b"x", Content_Encoding="br")
    assert (status, headers["accept-encoding"]) == (501, "gzip, deflate")
    bomb = gzip.compress(bytes(80_000_000))
    status, found, _ = call("POST", "/v2/models/identity/infer", bomb, Content_Encoding="gzip")
    assert status == 400
    assert "--http-max-input-size" in found["error"]


def test_errors_have_their_status(call: Caller) -> None:
    assert call.infer("nobody")[0] == 404
    assert call("POST", "/v2/models/identity/infer", b"{")[0] == 400
    assert call("POST", "/v2/models/identity/infer", b"")[0] == 400
    status, found, _ = call.infer(body=SIXTEEN + b"x")
    assert status == 400
    assert found["error"].startswith("unexpected additional input data for model 'identity'")
    status, found, _ = call.infer(parameters={"sequence_id": 5})
    assert (status, "sequence batching" in found["error"]) == (501, True)
    for path in (
        "models/identity/generate",
        "trace/setting",
        "repository/x/models/y/load",
    ):
        assert call("POST", f"/v2/{path}", {})[0] == 501
    status, found, _ = call.infer(parameters={"raise": "no luck"})
    assert (status, "no luck" in found["error"]) == (500, True)


def test_large_json_is_for_inference_alone(call: Caller) -> None:
    """The rest is read at once, while everybody waits."""
    numbers = b'{"ready":[' + b"1," * 100_000 + b"1]}"
    for path in ("repository/index", "repository/models/spare/unload", "logging"):
        status, found, _ = call("POST", f"/v2/{path}", numbers)
        assert (status, "expected at most 65536" in found["error"]) == (413, True), path
    status, found, _ = call("POST", "/v2/repository/models/spare/load", numbers)
    assert (status, "at most 4096 values, got more" in found["error"]) == (400, True)
    status, found, _ = call("POST", "/v2/repository/index", b'{"ready":[' + b"1," * 5000 + b"1]}")
    assert (status, "values, expected at most 4096" in found["error"]) == (400, True)
    assert call("POST", "/v2/models/identity/generate", numbers)[0] == 501


def test_repository(call: Caller) -> None:
    index = {row["name"]: row for row in call("POST", "/v2/repository/index")[1]}
    assert index["identity"] == {"name": "identity", "version": "1", "state": "READY"}
    ready = call("POST", "/v2/repository/index", {"ready": True})[1]
    assert [row["name"] for row in ready] == ["identity"]
    assert call("POST", "/v2/repository/index", {"ready": 1})[0] == 400
    load = "/v2/repository/models/spare/load"
    assert call("POST", load)[:2] == (200, b"")
    config = {"parameters": {"config": json.dumps({"max_batch_size": 3, "backend": "identity"})}}
    status, found, _ = call("POST", load, config)
    assert status in (200, 400), found
    no_text: Any
    for no_text in (None, {}, 7):
        status, found, _ = call("POST", load, {"parameters": {"config": no_text}})
        assert (status, "expected a string" in found["error"]) == (400, True)
    status, found, _ = call("POST", load, {"parameters": {"file:1/x": "aGk="}})
    assert (status, "--allow-file-override" in found["error"]) == (501, True)
    assert call("POST", "/v2/repository/models/spare/unload", {})[0] == 200
    assert call("POST", "/v2/repository/models/nobody/unload")[0] == 200
    assert call("POST", "/v2/repository/models/nobody/load")[0] in (400, 404, 500)
    status, found, _ = call("POST", load, {}, Origin="http://evil.example")
    assert (status, "web pages" in found["error"]) == (403, True)


def test_shared_memory(call: Caller) -> None:
    with NamedRegion(4096) as region:
        region.write(0, np.arange(16, dtype="<f4"))
        register = "/v2/systemsharedmemory/region/r/register"
        body = {"key": region.key, "byte_size": 4096}
        assert call("POST", register, body)[:2] == (200, b"")
        status, found, _ = call("POST", register, body)
        assert (status, "already in manager" in found["error"]) == (400, True)
        rows = [{"name": "r", "key": "/" + region.key, "offset": 0, "byte_size": 4096}]
        assert call("GET", "/v2/systemsharedmemory/status")[1] == rows
        assert call("GET", "/v2/systemsharedmemory/region/r/status")[1] == rows
        infer_in_region(call, region)
        # Another gateway registers it anew: this one's idea of it is out of date.
        assert call("POST", "/v2/systemsharedmemory/region/r/unregister")[0] == 200
        assert call("POST", register, body)[0] == 200
        infer_in_region(call, region)
        assert call("POST", "/v2/systemsharedmemory/unregister")[0] == 200
        assert call("GET", "/v2/systemsharedmemory/region/r/status")[0] == 404
        status, found, _ = call("POST", "/v2/models/identity/infer", in_region())
        assert (status, found["error"]) == (404, "Unable to find shared memory region: 'r'")
    status, found, _ = call("POST", register, {"key": "/nothing"})
    assert found["error"] == "Shared memory register request has no 'byte_size' field"
    assert call("GET", "/v2/cudasharedmemory/status")[1] == []
    for given, text in (
        ({}, "has no 'raw_handle' field"),
        ({"raw_handle": {"b64": "AAAA"}}, "must be a valid base64 encoded cudaIpcMemHandle_t"),
        ({"raw_handle": {"b64": "A" * 86 + "=="}}, "GPUs not supported"),
    ):
        status, found, _ = call("POST", "/v2/cudasharedmemory/region/g/register", given)
        assert (status, text in found["error"]) == (400, True), found


def in_region() -> dict[str, Any]:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 64}
    output = {**place, "shared_memory_offset": 1024}
    return {
        "inputs": [{**BINARY, "parameters": place}],
        "outputs": [{"name": "OUTPUT0", "parameters": output}],
    }


def infer_in_region(call: Caller, region: NamedRegion) -> None:
    """Also by clients that would take a compressed answer, as aiohttp's, or send compressed."""
    packed = gzip.compress(json.dumps(in_region()).encode())
    for body, headers in (
        (in_region(), {}),
        (in_region(), {"Accept_Encoding": "gzip, deflate"}),
        (packed, {"Content_Encoding": "gzip"}),
    ):
        region.write(1024, np.zeros(16))
        status, found, _ = call("POST", "/v2/models/identity/infer", body, **headers)
        assert status == 200, found
        assert found["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 16]}]
        assert region.read(1024, 64) == SIXTEEN


def test_a_large_tensor_both_ways(tmp_path: Path) -> None:
    folder = add_identity(tmp_path, "big", max_batch_size=0)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("[ 16 ]", "[ -1 ]"))
    with serve(tmp_path, arguments=["--http-port", "0"]) as server:
        data = os.urandom(4_000_000)
        given = {**BINARY, "shape": [1_000_000], "parameters": {"binary_data_size": len(data)}}
        text = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
        call = Caller(server)
        for _ in range(3):
            status, body, headers = call(
                "POST",
                "/v2/models/big/infer",
                text + data,
                Inference_Header_Content_Length=str(len(text)),
            )
            assert status == 200, body
            assert body[int(headers["inference-header-content-length"]) :] == data
        call.close()


def in_flight(server: Server) -> int:
    return sum(row["in_flight"] for row in server.client().status()["sessions"])


def slow(seconds: float) -> dict[str, Any]:
    return {"parameters": {"sleep_ms": seconds * 1000}}


def test_clients_that_go_away_leave_no_work(server: Server) -> None:
    place = urlsplit(server.http_url)
    text = json.dumps({"inputs": [BINARY], **slow(0.2)}).encode()
    head = (
        "POST /v2/models/identity/infer HTTP/1.1\r\nHost: h\r\n"
        f"Content-Length: {len(text) + 64}\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\n\r\n"
    ).encode()
    before = descriptors(server)
    sockets = []
    for _ in range(100):
        one = socket.create_connection((place.hostname, place.port))
        one.sendall(head + text + SIXTEEN)
        sockets.append(one)
    wait_until(lambda: in_flight(server) > 80, "the requests to arrive")
    for number, one in enumerate(sockets):
        if number % 2:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    start = time.monotonic()
    wait_until(lambda: in_flight(server) <= 8, "their cancellation")
    assert time.monotonic() - start < 5
    wait_until(lambda: descriptors(server) <= before, "their descriptors")


def descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pids['gateway-0']}/fd"))


BACK_SECONDS_MAX = 10.0
"""While eight threads of this process, and other tests, have the processors. Alone it takes 0.5 s,
0.8 s with gRPC: imports, a third of them NumPy's. test_front_door has the long form."""


def test_a_killed_gateway_is_back_at_once(server: Server) -> None:
    """The others' connections break; those in the backlog of the socket are served by the next."""
    stop = threading.Event()
    answered: list[float] = []
    broken: list[float] = []

    def ask() -> None:
        while not stop.is_set():
            caller = Caller(server)
            try:
                assert caller.infer()[0] == 200
                answered.append(time.monotonic())
            except (OSError, http.client.HTTPException):
                broken.append(time.monotonic())
            finally:
                caller.close()

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask) for _ in range(8)]
        wait_until(lambda: len(answered) > 50, "answers")
        first = server.pids["gateway-0"]
        os.kill(first, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: answered[-1] > killed + 0.5, "answers again")
        stop.set()
        for one in asking:
            one.result()
    assert server.pids["gateway-0"] != first
    assert len(broken) <= 8, "only what it had accepted is lost"
    back = min(moment for moment in answered if moment > killed + 0.01)
    assert back - killed < BACK_SECONDS_MAX


def test_a_killed_broker_costs_no_request(server: Server) -> None:
    """Gateways wait for the next one and ask again; nobody outside sees more than a delay."""
    stop = threading.Event()
    statuses: list[int] = []

    def ask() -> None:
        caller = Caller(server)
        while not stop.is_set():
            statuses.append(caller.infer()[0])
        caller.close()

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        wait_until(lambda: len(statuses) > 50, "answers")
        first = server.pids["broker"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: server.pids.get("broker", first) != first, "the next broker")
        seen = len(statuses)
        wait_until(lambda: len(statuses) > seen + 50, "answers again")
        health = Caller(server)
        assert health("GET", "/v2/health/live")[0] == 200
        health.close()
        stop.set()
        for one in asking:
            one.result()
    assert set(statuses) == {200}


def test_a_unix_socket(tmp_path: Path) -> None:
    models = tmp_path / "models"
    add_identity(models, "identity", max_batch_size=8)
    path = f"/tmp/naiad-http-{os.getpid()}.sock"
    arguments = ["--http-port", "0", "--http-address", f"unix:{path}"]
    with serve(models, arguments=arguments) as server:
        assert server.http_url == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)
            one.sendall(
                b"POST /v2/repository/index HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
            )
            assert one.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
    assert not os.path.exists(path)


def test_the_port_is_open_before_the_models_are_there(tmp_path: Path) -> None:
    """Live throughout, ready at the end; asked all the time, from before the gateway runs."""
    models = tmp_path / "models"
    add_identity(models, "slow", parameters={"load_ms": 1500})
    with chaos_server.begun(
        models, tmp_path / "run", f"http-{os.getpid()}", ["--http-port", "0"]
    ) as server:
        wait_until(lambda: "HTTP on" in server.log, "the port")
        lives: list[int] = []
        readies: list[int] = []
        caller = Caller(server)

        def is_ready() -> bool:
            lives.append(caller("GET", "/v2/health/live")[0])
            readies.append(caller("GET", "/v2/health/ready")[0])
            return readies[-1] == 200

        wait_until(is_ready, "the model")
        caller.close()
        assert set(lives) == {200}
        assert set(readies[:-1]) == {400}
        server.process.terminate()
        assert server.process.wait(20) == 0


def test_a_taken_port_is_one_sentence(server: Server, tmp_path: Path) -> None:
    port = str(urlsplit(server.http_url).port)
    arguments = ["--http-port", port, "--control-mode", "explicit"]
    failed = pytest.raises(ServerFailed, match=f"exit code {ExitCode.PORT}")
    with failed as raised, serve(tmp_path, arguments=arguments):
        pass
    assert f"port {port} on 127.0.0.1 is taken by another program" in str(raised.value)


def test_the_end_answers_what_is_under_way(tmp_path: Path) -> None:
    add_identity(tmp_path, "identity", max_batch_size=8)
    with serve(tmp_path, arguments=["--http-port", "0", "--gateways", "2"]) as server:
        callers = [Caller(server) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(one.infer, **slow(1.0)) for one in callers]
            wait_until(lambda: in_flight(server) == 4, "the requests")
            server.process.send_signal(signal.SIGTERM)
            assert [one.result()[0] for one in asked] == [200] * 4
        for one in callers:
            one.close()
        assert server.process.wait(20) == 0


def test_a_grace_period_serves_on_but_is_not_ready(tmp_path: Path) -> None:
    add_identity(tmp_path, "identity", max_batch_size=8)
    with serve(tmp_path, arguments=["--http-port", "0", "--grace-seconds", "1.5"]) as server:
        caller = Caller(server)
        assert caller.infer()[0] == 200  # the gateway is up
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: caller("GET", "/v2/health/ready")[0] == 503, "not ready")
        assert caller("GET", "/v2/health/live")[0] == 200
        assert caller.infer()[0] == 200
        last: list[tuple[int, Any]] = []

        def is_over() -> bool:
            try:
                last.append(caller.infer()[:2])
            except OSError:
                return True
            return last[-1][0] != 200

        wait_until(is_over, "the end of the grace period")
        assert {status for status, _ in last} <= {200, 503}
        caller.close()
        assert server.process.wait(20) == 0


def test_what_changes_the_server_is_for_this_machine_alone(tmp_path: Path) -> None:
    """Asked over an address that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = probe.getsockname()[0]
    add_identity(tmp_path, "identity", max_batch_size=8)
    with serve(tmp_path, arguments=["--http-port", "0", "--http-address", address]) as server:
        caller = Caller(server)
        assert caller.infer()[0] == 200
        assert caller("POST", "/v2/repository/index")[0] == 200
        assert caller("POST", "/v2/repository/models/identity/unload")[0] == 403
        for kind, path in product(("system", "cuda"), ("region/r/register", "unregister")):
            status, found, _ = caller("POST", f"/v2/{kind}sharedmemory/{path}", {})
            assert (status, "--allow-client-shm=true" in found["error"]) == (501, True)
        status, found, _ = caller("POST", "/v2/models/identity/infer", in_region())
        assert (status, "--allow-client-shm=true" in found["error"]) == (501, True)
        caller.close()

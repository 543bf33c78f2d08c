"""Groups that need a secret, and a management listener, over HTTP and gRPC."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from naiad.cli.exit_codes import ExitCode
from naiad.testing.server import Server, ServerFailed, serve
from support.repositories import add_identity
from support.waiting import wait_until

SECRET = "hidden-from-ps"
BODY = {"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": [0] * 16}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("access")
    add_identity(repository, "identity", max_batch_size=8)
    shutil.rmtree(add_identity(repository, "nothing") / "1")
    wrong = add_identity(repository, "wrong") / "config.pbtxt"
    wrong.write_text(wrong.read_text().replace('"identity"', '"python"'))
    wrong.with_name("1").joinpath("model.py").write_text(
        "open(__file__.replace('model.py', 'weights.bin'))\n"
    )
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"# of gRPC\ninference,statistics:Key={SECRET}\n\nhealth:key=other\n")
    arguments = ["--http-port", "0", "--grpc-port", "0", "--management-port", "0"]
    arguments += ["--http-restricted-api", f"inference,statistics:Key={SECRET}"]
    arguments += ["--grpc-restricted-protocol", f"@{keys}"]
    arguments += ["--control-mode", "explicit", "--load-model", "identity"]
    with serve(repository, arguments=arguments) as running:
        yield running


def asked(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def management_url(server: Server) -> str:
    found = re.search(r"^management on (\S+)$", server.log, re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_page_tells_nothing_that_a_group_keeps(server: Server) -> None:
    status, found = asked(server.http_url, "GET", "/status.json")
    assert (status, "restricted" in found["error"]) == (403, True)
    status, found = asked(server.http_url, "GET", "/status.json", Key=SECRET)
    assert (status, found["models"][0]["name"]) == (200, "identity")


def test_a_restricted_group_needs_its_header(server: Server) -> None:
    refused = {"error": "This API is restricted, expecting header 'Key'"}
    infer = "/v2/models/identity/infer"
    for _ in range(2):  # the second one finds its head known
        assert asked(server.http_url, "POST", infer, BODY) == (403, refused)
        assert asked(server.http_url, "POST", infer, BODY, Key=f"{SECRET}x") == (403, refused)
        assert asked(server.http_url, "POST", infer, BODY, key=SECRET)[0] == 200
    assert asked(server.http_url, "GET", "/v2/models/stats") == (403, refused)
    assert asked(server.http_url, "GET", "/v2/models/stats", Key=SECRET)[0] == 200
    assert asked(server.http_url, "GET", "/v2/health/ready") == (200, None)


def test_the_same_over_grpc(server: Server) -> None:
    tensor = grpc.InferInput("INPUT0", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
    with grpc.InferenceServerClient(server.grpc_target) as client:
        for value in ("", "wrong"):
            with pytest.raises(InferenceServerException) as caught:
                client.infer("identity", [tensor], headers={"triton-grpc-protocol-key": value})
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            assert caught.value.message() == (
                "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"
            )
        assert client.infer("identity", [tensor], headers={"triton-grpc-protocol-key": SECRET})
        assert client.is_server_live(headers={"triton-grpc-protocol-key": "other"})
        assert client.get_server_metadata()


def test_no_gateway_shows_the_secret_and_the_next_one_knows_it(server: Server) -> None:
    (gateway,) = (pid for name, pid in server.pids.items() if "gateway" in name)
    for part in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{gateway}/{part}").read_bytes()

    os.kill(gateway, signal.SIGKILL)

    def statuses() -> list[int]:
        try:
            given: list[dict[str, str]] = [{}, {"Key": SECRET}]
            return [asked(server.http_url, "GET", "/v2/models/stats", **one)[0] for one in given]
        except OSError:
            return []

    wait_until(lambda: statuses() == [403, 200], "the next gateway")


def test_what_changes_the_server_is_served_on_the_management_listener(server: Server) -> None:
    inside = management_url(server)
    for method, path in (
        ("POST", "/v2/repository/models/identity/load"),
        ("POST", "/v2/repository/models/identity/unload"),
        ("POST", "/v2/systemsharedmemory/unregister"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/cudasharedmemory/status"),
        ("POST", "/v2/logging"),
    ):
        status, found = asked(server.http_url, method, path)
        assert (status, "see --management-port" in found["error"]) == (403, True)
    assert asked(server.http_url, "POST", "/v2/repository/index")[0] == 200
    assert asked(inside, "GET", "/v2/systemsharedmemory/status") == (200, [])
    assert asked(inside, "POST", "/v2/systemsharedmemory/unregister") == (200, None)
    assert asked(inside, "GET", "/v2/health/live") == (200, None)
    assert asked(inside, "GET", "/v2/models/stats")[0] == 403
    with grpc.InferenceServerClient(server.grpc_target) as client:
        for ask in (
            lambda: client.load_model("identity"),
            client.get_system_shared_memory_status,
            client.unregister_cuda_shared_memory,
        ):
            with pytest.raises(InferenceServerException, match="--management-port") as caught:
                ask()
            assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
        assert client.get_model_repository_index()


def test_no_error_tells_where_the_server_keeps_its_models(server: Server) -> None:
    inside = management_url(server)
    for name, text in (
        ("nothing", "put the model's file into nothing/1"),
        ("wrong", "'wrong/1/weights.bin'"),
        ("absent", "no directory named 'absent' in the model repository"),
    ):
        status, found = asked(inside, "POST", f"/v2/repository/models/{name}/load")
        assert status == (500 if name == "absent" else 400)
        assert text in found["error"]
        assert "access0" not in found["error"]
    index = asked(inside, "POST", "/v2/repository/index")[1]
    assert any("weights.bin" in row.get("reason", "") for row in index)
    assert "/access0" not in json.dumps(index)


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["--http-restricted-api", "bogus:a=b"], "'bogus' is no category", ExitCode.USAGE),
        (["--grpc-restricted-protocol", "@/nowhere"], "No such file", ExitCode.USAGE),
        (
            ["--management-port", "0", "--management-address", "0.0.0.0"],
            "0.0.0.0 can be reached from other machines",
            ExitCode.PORT,
        ),
        (["--management-address", "::1"], "needs --management-port", ExitCode.USAGE),
    ],
)
def test_wrong_options_end_the_start(
    tmp_path: Path, arguments: list[str], text: str, code: ExitCode
) -> None:
    add_identity(tmp_path / "repository", "identity")
    with (
        pytest.raises(ServerFailed, match=text) as caught,
        serve(tmp_path / "repository", arguments=["--http-port", "0", *arguments]),
    ):
        pass
    assert f"exit code {int(code)}" in str(caught.value)

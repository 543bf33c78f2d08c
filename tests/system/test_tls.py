"""HTTPS and mutual TLS of a whole server: stock clients, large bodies, wrong certificates."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.http as triton

from naiad.cli.exit_codes import ExitCode
from naiad.testing.server import Server, ServerFailed, serve
from support.certificates import Certificates, made
from support.repositories import add_identity
from support.waiting import wait_until

PATIENCE_S = 20.0
LARGE = np.arange(2**21, dtype=np.float32).reshape(1, -1)
HALF = LARGE.nbytes // 2


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("https")
    config = add_identity(repository, "identity", max_batch_size=8) / "config.pbtxt"
    config.write_text(config.read_text().replace("[ 16 ]", "[ -1 ]"))
    arguments = ["--http-port", "0", *certificates.options("http", "use-ssl-mutual")]
    with serve(repository, arguments=arguments) as running:
        yield running


def status(server: Server, context: ssl.SSLContext) -> int:
    connection = HTTPSConnection(
        "localhost", urlsplit(server.http_url).port, timeout=PATIENCE_S, context=context
    )
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status
    finally:
        connection.close()


def test_curl(server: Server, certificates: Certificates) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    url = server.http_url.replace("127.0.0.1", "localhost")
    own = ["--cert", certificates.cert("client"), "--key", certificates.key("client")]
    asked = [curl, "-sS", "--fail", "--cacert", certificates.cert("ca"), *own, f"{url}/v2"]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert '"extensions":' in found.stdout


def test_tritonclient_with_small_and_large_tensors(
    server: Server, certificates: Certificates
) -> None:
    options = {
        "ca_certs": certificates.cert("ca"),
        "certfile": certificates.cert("client"),
        "keyfile": certificates.key("client"),
    }
    place = f"localhost:{urlsplit(server.http_url).port}"
    with triton.InferenceServerClient(place, ssl=True, ssl_options=options) as client:
        for values in (LARGE[:, :16], LARGE, LARGE[:, :16]):
            tensor = triton.InferInput("INPUT0", list(values.shape), "FP32")
            tensor.set_data_from_numpy(np.ascontiguousarray(values))
            found = client.infer("identity", [tensor]).as_numpy("OUTPUT0")
            assert np.array_equal(found, values)


def test_who_shows_no_certificate_or_a_strangers_is_not_served(
    server: Server, certificates: Certificates
) -> None:
    for name in ("", "stranger"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            status(server, certificates.client_context(name))
    assert status(server, certificates.client_context("client")) == 200


def connected(server: Server, certificates: Certificates) -> HTTPSConnection:
    """A client with its certificate."""
    return HTTPSConnection(
        "localhost",
        urlsplit(server.http_url).port,
        timeout=PATIENCE_S,
        context=certificates.client_context("client"),
    )


def large_request(values: bytes) -> bytes:
    """The JSON before the bytes of a tensor like LARGE, whose answer is binary as well."""
    tensor: Any = {"name": "INPUT0", "datatype": "FP32", "shape": [1, LARGE.size]}
    tensor["parameters"] = {"binary_data_size": len(values)}
    wish = {"binary_data_output": True}
    return json.dumps({"inputs": [tensor], "parameters": wish}).encode()


def test_a_client_that_goes_away_is_noticed(server: Server, certificates: Certificates) -> None:
    body = (
        b'{"parameters":{"sleep_ms":60000},"inputs":[{"name":"INPUT0","datatype":"FP32",'
        b'"shape":[1,1],"data":[1]}]}'
    )
    connection = connected(server, certificates)

    def executing() -> int:
        with server.client() as client:
            return int(client.status()["models"][0]["executing"])

    connection.request("POST", "/v2/models/identity/infer", body)
    wait_until(lambda: executing() == 1, "the request under way", PATIENCE_S)
    connection.close()
    wait_until(lambda: executing() == 0, "its end", PATIENCE_S)


def test_a_connection_is_closed_behind_all_of_a_large_answer(
    server: Server, certificates: Certificates
) -> None:
    values = LARGE.tobytes()
    text = large_request(values)
    connection = connected(server, certificates)
    connection.request(
        "POST",
        "/v2/models/identity/infer",
        text + values,
        {"Inference-Header-Content-Length": str(len(text)), "Connection": "close"},
    )
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.read().endswith(values)
    connection.close()


def test_a_large_body_is_received_in_shared_memory(
    server: Server, certificates: Certificates
) -> None:
    values = os.urandom(LARGE.nbytes)
    text = large_request(values)
    connection = connected(server, certificates)
    connection.putrequest("POST", "/v2/models/identity/infer")
    connection.putheader("Inference-Header-Content-Length", str(len(text)))
    connection.putheader("Content-Length", str(len(text) + len(values)))
    connection.endheaders(text + values[:HALF])

    # Before the body is whole: nothing can have been copied there.
    wait_until(lambda: lies_in_shared_memory(server, values[:HALF]), "the half in shared memory")
    connection.send(values[HALF:])
    assert connection.getresponse().read().endswith(values)
    connection.close()


def lies_in_shared_memory(server: Server, values: bytes) -> bool:
    """In a segment of a gateway of this server."""
    pattern = f"naiad.{server.name}.gateway.*"
    return any(values in path.read_bytes() for path in Path("/dev/shm").glob(pattern))


def test_wrong_files_end_the_start(tmp_path: Path, certificates: Certificates) -> None:
    add_identity(tmp_path / "repository", "identity")
    given = [*certificates.options("http", "use-ssl"), "--http-server-key", certificates.key("ca")]
    with (
        pytest.raises(ServerFailed) as caught,
        serve(tmp_path / "repository", arguments=["--http-port", "0", *given]),
    ):
        pass
    assert "cannot be used together: KEY_VALUES_MISMATCH" in str(caught.value)
    assert f"exit code {int(ExitCode.USAGE)}" in str(caught.value)
    assert "Traceback" not in str(caught.value)

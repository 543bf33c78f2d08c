"""Gateway processes with gRPC: one beside HTTP, several on one port, with TLS, and their end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from naiad.testing.server import Server, _environment, serve
from support.certificates import Certificates, made
from support.grpc_models import floats
from support.models import add_echo
from support.waiting import wait_until

PATIENCE_S = 20


@contextmanager
def gateway(server: Server, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A gateway process with HTTP somewhere; ended by SIGTERM with exit code 0 if still there."""
    command = [sys.executable, "-m", "naiad.gateway", "--run-dir", str(server.run_dir)]
    process = subprocess.Popen(
        [*command, "--http-port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(None),
    )
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def answers(client: Any) -> bool:
    try:
        return bool(client.is_server_ready())
    except InferenceServerException:
        return False


def asked(target: str, **options: Any) -> list[float]:
    with triton.InferenceServerClient(target, **options) as client:
        wait_until(lambda: answers(client), f"{target} ready", PATIENCE_S)
        found: list[float] = client.infer("echo_fp32", floats(3)).as_numpy("OUTPUT0").tolist()
        return found


def refusal(server: Server, *arguments: str) -> str:
    with gateway(server, *arguments) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    return errors


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("g")  # sockets have short names


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else is given as long as it is bound here."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def test_http_and_grpc_in_one_process(server: Server, short: Path) -> None:
    path = short / "g"

    with gateway(server, "--grpc-port", "0", "--grpc-address", f"unix:{path}"):
        assert asked(f"unix:{path}") == [3.0]


def test_several_gateways_share_a_port_and_one_may_die(server: Server, port: int) -> None:
    arguments = ["--grpc-port", str(port), "--reuse-port"]
    with gateway(server, *arguments) as first:
        assert asked(f"127.0.0.1:{port}") == [3.0]
        with gateway(server, *arguments) as second:
            assert asked(f"127.0.0.1:{port}") == [3.0]
            first.kill()
            first.wait(PATIENCE_S)

            # Reachable as soon as the kernel has only the second to choose, which may not be up.
            wait_until(lambda: asked(f"127.0.0.1:{port}") == [3.0], "answers", PATIENCE_S)
            assert second.poll() is None


def test_a_port_that_is_taken(server: Server) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        errors = refusal(server, "--grpc-port", str(other.getsockname()[1]))

    assert "is taken by another program" in errors
    assert "--grpc-port" in errors
    assert "Traceback" not in errors


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made(tmp_path_factory.mktemp("tls"))


def test_tls(server: Server, port: int, certificates: Certificates) -> None:
    arguments = ["--grpc-port", str(port), "--reuse-port", *certificates.options("grpc", "use-ssl")]

    with gateway(server, *arguments):
        root = certificates.cert("ca")
        assert asked(f"localhost:{port}", ssl=True, root_certificates=root) == [3.0]
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as plain:
            assert not answers(plain)


def test_mutual_tls(server: Server, port: int, certificates: Certificates) -> None:
    root = certificates.cert("ca")
    arguments = certificates.options("grpc", "use-ssl-mutual")

    with gateway(server, "--grpc-port", str(port), "--reuse-port", *arguments):
        own = {
            "private_key": certificates.key("client"),
            "certificate_chain": certificates.cert("client"),
        }
        assert asked(f"localhost:{port}", ssl=True, root_certificates=root, **own) == [3.0]
        with triton.InferenceServerClient(
            f"localhost:{port}", ssl=True, root_certificates=root
        ) as nobody:
            assert not answers(nobody)


def test_tls_of_a_whole_server(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> None:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo_fp32", "FP32 -1")
    arguments = ["--grpc-port", "0", *certificates.options("grpc", "use-ssl")]
    with serve(repository, arguments=arguments) as server:
        target = server.grpc_target.replace("127.0.0.1", "localhost")

        assert asked(target, ssl=True, root_certificates=certificates.cert("ca")) == [3.0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--grpc-use-ssl"], "give --grpc-server-cert"),
        (["--grpc-use-ssl", "--grpc-server-cert", "/nowhere.pem"], "/nowhere.pem: No such file"),
        (["--grpc-server-key", "/nowhere.pem"], "add --grpc-use-ssl"),
    ],
)
def test_tls_that_is_not_complete(server: Server, arguments: list[str], text: str) -> None:
    errors = refusal(server, "--grpc-port", "0", *arguments)

    assert text in errors
    assert "Traceback" not in errors


def test_a_second_signal_ends_at_once(server: Server, short: Path) -> None:
    path = short / "g"
    with gateway(server, "--grpc-port", "0", "--grpc-address", f"unix:{path}") as process:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_S)
            with triton.InferenceServerClient(f"unix:{path}") as client:
                client.async_infer(
                    "echo_fp32",
                    floats(1),
                    callback=lambda result, error: None,
                    parameters={"sleep_ms": 60_000},
                )
                with server.client() as native:
                    wait_until(lambda: native.status()["models"][0]["executing"], "executing")
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGINT)  # two of a kind may become one
                process.wait(PATIENCE_S)
        assert process.returncode == 130

"""One server for all of these tests, asked through HTTP and gRPC alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from naiad.client import Client
from naiad.testing.server import Server, serve
from support.front_door import Door, GrpcDoor, HttpDoor
from support.models import add_echo, add_python
from support.models_python import ADD_SUB, ECHO, python_model

PATIENCE_S = 20
SCALAR_CONFIG = """
backend: "python" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
"""
CUBE = python_model(
    """
    words = [word.encode() for word in "a bb ccc dddd \\u00e9 f".split()] + [b"", b"\\0"]
    return [output(np.array(words, object).reshape(2, 2, 2)) for _ in requests]
    """
)
"""Three dimensions of strings, whatever is asked."""

SENDER = python_model(
    """
    for request in requests:
        how = array_of(request)[0].decode()
        sender = request.get_response_sender()
        getattr(self, how)(sender, output(array_of(request)))
        self.kept = sender if how == "later" else None
    """,
    more="""
    def together(self, sender, response):
        sender.send(response, flags=FINAL)

    def apart(self, sender, response):
        sender.send(response)
        sender.send(flags=FINAL)

    def later(self, sender, response):
        threading.Timer(0.05, self.apart, (sender, response)).start()

    def flag_alone(self, sender, response):
        sender.send(flags=FINAL)

    def nothing(self, sender, response):
        pass

    def after_the_flag(self, sender, response):
        self.together(sender, response)
        self.refused(sender, response)

    def twice(self, sender, response):
        sender.send(response)
        self.refused(sender, response)
        sender.send(flags=FINAL)

    def refused(self, sender, response):
        try:
            sender.send(response)
        except pb_utils.TritonModelException:
            return
        raise AssertionError("the response was taken")
    """,
    head="""
    import threading
    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    """,
)
"""Answers by a response sender, in the way that the request names."""

COUNTER = python_model(
    """
    self.count = getattr(self, "count", 0) + 1
    return [output(np.array([self.count], np.float32)) for _ in requests]
    """
)
"""Which request it is, of all that it was asked; one in each execution."""


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name in ("FP32", "FP16", "INT32", "UINT8", "BOOL", "BYTES"):
        add_echo(folder, name.lower(), f"{name} -1")
    add_echo(folder, "rows", "FP16 -1", max_batch_size=8)
    add_echo(folder, "matrix", "FP16 -1 -1")
    add_echo(folder, "spare", "FP32 -1")
    pair = ["0 FP32 16", "1 FP32 16"]
    inputs, outputs = [f"INPUT{one}" for one in pair], [f"OUTPUT{one}" for one in pair]
    add_python(folder, "add_sub", ADD_SUB, inputs, outputs)
    add_python(folder, "sender", SENDER, ["INPUT0 BYTES 1"], ["OUTPUT0 BYTES 1"])
    add_python(folder, "counter", COUNTER, ["INPUT0 FP32 1"], ["OUTPUT0 FP32 1"])
    add_python(folder, "cube", CUBE, ["INPUT0 FP32 1"], ["OUTPUT0 BYTES 2 2 2"])
    (add_python(folder, "scalar", ECHO) / "config.pbtxt").write_text(SCALAR_CONFIG)
    return folder


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[Server]:
    arguments = ["--http-port", "0", "--grpc-port", "0", "--control-mode", "explicit"]
    arguments += ["--load-model", "*", "--spares", "0"]
    with serve(repository, arguments=arguments) as server:
        yield server


@pytest.fixture(scope="session")
def native(server: Server) -> Client:
    """Sees what the doors do not tell."""
    return server.client()


@pytest.fixture(scope="session")
def http(server: Server) -> HttpDoor:
    return HttpDoor(server)


@pytest.fixture(scope="session")
def grpc_door(server: Server) -> Iterator[GrpcDoor]:
    door = GrpcDoor(server)
    grpc.channel_ready_future(door.channel).result(PATIENCE_S)
    yield door
    door.close()


@pytest.fixture(scope="session", params=["http", "grpc"])
def door(request: pytest.FixtureRequest, http: HttpDoor, grpc_door: GrpcDoor) -> Door:
    """The test is run through each."""
    return http if request.param == "http" else grpc_door


@pytest.fixture(autouse=True)
def unharmed(server: Server) -> Iterator[None]:
    """Broker and gateway outlive every test."""
    before = [server.pids[name] for name in ("broker", "gateway-0")]
    yield
    assert [server.pids[name] for name in ("broker", "gateway-0")] == before

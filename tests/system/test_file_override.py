"""Files that come with a load, over both protocols: served, replaced, removed, refused."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from naiad.testing.server import Server, serve
from support.models import add_python
from support.models_python import ECHO, python_model
from support.waiting import wait_until

CONFIG = {
    "backend": "python",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}
TEXT = json.dumps(CONFIG)
TIMES = "return [output(np.float32({}) * array_of(request)) for request in requests]"
PORTS = ["--http-port", "0", "--grpc-port", "0", "--control-mode", "explicit"]


def times(factor: int) -> bytes:
    return python_model(TIMES.format(factor)).encode()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    add_python(folder, "usual", ECHO, ["INPUT0 FP32 -1"], ["OUTPUT0 FP32 -1"])
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with serve(repository, arguments=[*PORTS, "--allow-file-override"]) as server:
        yield server


def client_of(server: Server, skin: str) -> Any:
    if skin == "http":
        return triton_http.InferenceServerClient(
            server.http_url.removeprefix("http://"), network_timeout=60, connection_timeout=60
        )
    return triton_grpc.InferenceServerClient(server.grpc_target)


@pytest.fixture(params=["http", "grpc"])
def door(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    client = client_of(server, request.param)
    yield client
    for name in ("usual", "fresh"):
        client.unload_model(name)
    client.close()
    wait_until(lambda: uploads(server) == [], "all uploads are removed")


def uploads(server: Server) -> list[str]:
    folder = server.run_dir / "uploads"
    return os.listdir(folder) if folder.exists() else []


def answer(server: Server, model: str) -> float:
    with server.client() as client:
        found = client.infer(model, {"INPUT0": np.ones(1, np.float32)})
        return float(found["OUTPUT0"][0])


def test_a_model_of_its_files_alone_is_served_and_removed(server: Server, door: Any) -> None:
    door.load_model("fresh", config=TEXT, files={"file:1/model.py": times(3)})
    assert answer(server, "fresh") == 3
    assert len(uploads(server)) == 1
    assert os.stat(server.run_dir / "uploads").st_mode & 0o777 == 0o700
    door.unload_model("fresh")
    wait_until(lambda: uploads(server) == [], "its files are removed")
    with pytest.raises(InferenceServerException, match="failed to poll from model repository"):
        door.load_model("fresh")


def test_files_replace_the_repository_until_a_plain_load(server: Server, door: Any) -> None:
    door.load_model("usual")
    assert answer(server, "usual") == 1
    files = {"file:2/model.py": times(2), "file:5/model.py": times(5)}
    door.load_model("usual", config=TEXT, files=files)
    assert answer(server, "usual") == 5
    door.load_model("usual")
    assert answer(server, "usual") == 1
    wait_until(lambda: uploads(server) == [], "its files are removed")


def test_a_load_that_fails_leaves_what_served_and_no_files(server: Server, door: Any) -> None:
    door.load_model("usual")
    bad = b"raise ValueError('broken on purpose')\n"
    with pytest.raises(InferenceServerException, match="broken on purpose"):
        door.load_model("usual", config=TEXT, files={"file:1/model.py": bad})
    assert answer(server, "usual") == 1
    wait_until(lambda: uploads(server) == [], "its files are removed")


@pytest.mark.parametrize(
    ("config", "files", "said"),
    [
        (None, {"file:1/model.py": b"x"}, "Load parameter 'config' must be specified"),
        (TEXT, {"file:../x": b"x"}, 'contains ".."'),
        (TEXT, {"file:a": b"x", "file:a/b": b"x"}, "one is in another"),
        (TEXT, {"file:1/other.py": b"x"}, "model.py"),
        ("{", {"file:1/model.py": b"x"}, "Invalid config override"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_leaves_nothing(
    server: Server, door: Any, config: str | None, files: dict[str, bytes], said: str
) -> None:
    with pytest.raises(InferenceServerException, match=re.escape(said)):
        door.load_model("fresh", config=config, files=files)
    door.unload_model("fresh")
    wait_until(lambda: uploads(server) == [], "nothing is left")
    assert not (server.run_dir / "x").exists()


def test_the_files_outlive_the_broker_and_a_worker(server: Server, door: Any) -> None:
    door.load_model("fresh", config=TEXT, files={"file:1/model.py": times(4)})
    os.kill(server.pids["broker"], signal.SIGKILL)
    assert answer(server, "fresh") == 4
    with server.client() as client:
        rows = client.status()["instances"]
    (worker,) = [row["pid"] for row in rows if row["model"] == "fresh"]
    os.kill(worker, signal.SIGKILL)
    assert answer(server, "fresh") == 4
    assert len(uploads(server)) == 1


def test_base64_that_is_none_is_refused(server: Server) -> None:
    body = {"parameters": {"config": TEXT, "file:1/model.py": "###"}}
    request = urllib.request.Request(
        f"{server.http_url}/v2/repository/models/fresh/load", json.dumps(body).encode()
    )
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=20)
    assert raised.value.code == 400
    assert "no base64" in json.load(raised.value)["error"]


def test_without_the_flag_files_are_refused_and_configurations_are_not(repository: Path) -> None:
    with serve(repository, arguments=PORTS) as server:
        for skin in ("http", "grpc"):
            client = client_of(server, skin)
            with pytest.raises(InferenceServerException, match="--allow-file-override") as raised:
                client.load_model("usual", config=TEXT, files={"file:1/model.py": times(2)})
            assert raised.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
            client.load_model("usual", config=json.dumps({**CONFIG, "max_batch_size": 6}))
            found = client.get_model_config("usual")
            found = found if skin == "http" else {"max_batch_size": found.config.max_batch_size}
            assert found["max_batch_size"] == 6
            client.unload_model("usual")
            client.close()
        assert uploads(server) == []

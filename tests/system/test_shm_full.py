"""A server and its client with a /dev/shm of 64 MB, full from the start or filled while they serve.

Runs in a mount namespace of its own. The answers are right all the same, with one warning each;
inputs that no message can carry are refused by every door for what it is: no room.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.shm_process import PYTHON_PATH

ROOT = Path(__file__).resolve().parents[2]
SMALL_SHM = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
WAYS = (
    ["unshare", "--mount", "--propagation", "private"],
    ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"],
)
PROGRAM = """
import gc, json, logging, os, shutil, sys, tempfile, urllib.error, urllib.request
import grpc
import numpy as np
from naiad.client import NaiadError
from naiad.gateway.proto import inference_pb2 as pb
from naiad.shm.objects import free_bytes
from naiad.testing.server import serve

repository = tempfile.mkdtemp(dir=sys.argv[2])
shutil.copytree(sys.argv[1], repository + "/identbig")
warnings = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger().addHandler(handler)

def fill(name):
    # A few kilobytes remain, as after a real run into the end of a file system.
    descriptor = os.open("/dev/shm/" + name, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(descriptor, 0, max(4096, free_bytes() - 4096))
    os.close(descriptor)

def image(seed):
    return np.random.default_rng(seed).random((4, 3, 224, 224), np.float32)

def right(client, seeds):
    given = {seed: image(seed) for seed in seeds}
    futures = {seed: client.submit("identbig", {"INPUT0": given[seed]}) for seed in seeds}
    results = {seed: future.result(60)["OUTPUT0"] for seed, future in futures.items()}
    return all((results[seed] == given[seed]).all() for seed in seeds)

LARGE = np.zeros((160, 3, 224, 224), np.float32)  # 96 MB

def told_natively(client):
    try:
        client.infer("identbig", {"INPUT0": LARGE})
    except NaiadError as fault:
        return [str(fault.code), fault.retryable, fault.message]

def told_over_http(server):
    tensor = {
        "name": "INPUT0", "datatype": "FP32", "shape": LARGE.shape,
        "parameters": {"binary_data_size": LARGE.nbytes},
    }
    header = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(
        server.http_url + "/v2/models/identbig/infer", header + LARGE.tobytes(),
        {"Inference-Header-Content-Length": str(len(header))},
    )
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as fault:
        return [fault.code, "Retry-After" in fault.headers, json.loads(fault.read())["error"]]

def told_over_grpc(server):
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="INPUT0", datatype="FP32", shape=LARGE.shape
    )
    request = pb.ModelInferRequest(
        model_name="identbig", inputs=[tensor], raw_input_contents=[LARGE.tobytes()]
    )
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc_target, options) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
        )
        try:
            call(request)
        except grpc.RpcError as fault:
            return [fault.code().name, True, fault.details()]

out = {}
with serve(repository, arguments=["--http-port", "0", "--grpc-port", "0"]) as server:
    with server.client() as client:
        client.live()
        out["with room"] = right(client, range(4))
        gc.collect()
        fill("one")
        out["free when filled"] = free_bytes()
        out["filled while serving"] = right(client, range(40, 60))
        out["natively"] = told_natively(client)
        out["over HTTP"] = told_over_http(server)
        out["over gRPC"] = told_over_grpc(server)
        out["ready"] = client.ready()
    fill("two")
    with server.client() as client:
        out["full from the start"] = right(client, range(60, 64))
    os.unlink("/dev/shm/one")
    with server.client(transport="shm") as client:
        out["room again"] = right(client, range(70, 72))
    out["server's warnings"] = [
        line for line in server.log.splitlines() if "no room in shared memory" in line
    ]
    out["deaths"] = [line for line in server.log.splitlines() if " died" in line]
out["client's warnings"] = [text for text in warnings if "no room in shared memory" in text]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the program saw in its own /dev/shm."""
    for way in WAYS:
        try:
            tried = subprocess.run(
                [*way, "sh", "-c", SMALL_SHM, "sh", "true"], capture_output=True, check=False
            )
        except FileNotFoundError:
            continue
        if tried.returncode == 0:
            break
    else:
        pytest.skip("no private mount namespace: unshare is missing or not permitted here")
    program = [sys.executable, "-c", PROGRAM, str(ROOT / "model_repository" / "identbig")]
    done = subprocess.run(
        [*way, "sh", "-c", SMALL_SHM, "sh", *program, str(tmp_path_factory.mktemp("full"))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "when", ["with room", "filled while serving", "full from the start", "room again", "ready"]
)
def test_the_answers_are_right(seen: dict[str, object], when: str) -> None:
    assert seen[when] is True


@pytest.mark.parametrize(
    ("door", "code"),
    [("natively", "unavailable"), ("over HTTP", 503), ("over gRPC", "UNAVAILABLE")],
)
def test_inputs_that_no_message_can_carry_are_refused_for_want_of_room(
    seen: dict[str, object], door: str, code: object
) -> None:
    told = seen[door]
    assert isinstance(told, list)
    assert told[:2] == [code, True]
    assert "expected at most 67108864 bytes of inline inputs" in told[2]
    assert "no room in shared memory; enlarge /dev/shm" in told[2]


def test_it_was_full(seen: dict[str, object]) -> None:
    free = seen["free when filled"]
    assert isinstance(free, int)
    assert free <= 4096


def test_nobody_died(seen: dict[str, object]) -> None:
    assert seen["deaths"] == []


@pytest.mark.parametrize("who", ["client's warnings", "server's warnings"])
def test_each_process_warns_once(seen: dict[str, object], who: str) -> None:
    warnings = seen[who]
    assert isinstance(warnings, list)
    # One worker and one gateway met the full file system, and two clients of one process.
    assert 1 <= len(warnings) <= 2
    if who == "server's warnings":
        processes = {line.split()[1] for line in warnings}
        assert len(processes) == len(warnings)

"""A container's /dev/shm of 64 MB: models load, large tensors arrive, and the shortage is told.

Runs in a mount namespace of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

SMALL_SHM = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
WAYS = (
    ["unshare", "--mount", "--propagation", "private"],
    ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"],
)
PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy as np
from naiad.testing.server import serve
from support.front_door import Given, GrpcDoor, HttpDoor
from support.models import add_python
from support.models_python import ECHO
from support.waiting import wait_until

repository = Path(sys.argv[1])
for name in ("a", "b", "c"):
    add_python(repository, name, ECHO, ["INPUT0 FP32 -1"], ["OUTPUT0 FP32 -1"])
array = np.arange(40 * 2**20 // 4, dtype=np.float32)
found = {"free": os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize}
with serve(repository, arguments=["--http-port", "0", "--grpc-port", "0"]) as server:
    client = server.client()
    found["states"] = [row["state"] for row in client.index()]
    found["right"] = [
        bool((client.infer(name, {"INPUT0": array})["OUTPUT0"] == array).all())
        for name in ("a", "b", "c")
    ]
    given = Given("INPUT0", "FP32", [len(array)], array.tobytes())
    found["right"] += [
        Door(server).infer("a", [given])["OUTPUT0"].data == given.data
        for Door in (HttpDoor, GrpcDoor)
    ]
    def counted():
        return client.status()["counters"]["inline_fallbacks"]
    wait_until(counted, "the shortage is counted")
    found["counted"] = counted()
    found["deaths"] = client.status()["counters"]["worker_deaths"]
    lines = [line for line in server.log.splitlines() if "no room in shared" in line]
    found["warnings"] = [line for line in lines if "naiad-worker[" in line]
print(json.dumps(found))
"""


def small_shm() -> list[str]:
    """The command line with which a program gets a /dev/shm of 64 MB of its own."""
    for way in WAYS:
        command = [*way, "sh", "-c", SMALL_SHM, "sh"]
        try:
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command
        except FileNotFoundError:
            continue
    pytest.skip("no private mount namespace: unshare is missing or not permitted here")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program saw."""
    run = subprocess.run(
        [*small_shm(), sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("repository"))],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert run.returncode == 0, run.stderr
    seen: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert 60e6 < seen["free"] < 70e6
    return seen


def test_every_python_model_loads(found: dict[str, Any]) -> None:
    assert found["states"] == ["READY"] * 3


def test_tensors_of_40_megabytes_are_answered_right(found: dict[str, Any]) -> None:
    """Through the native client to each model, and over HTTP and gRPC."""
    assert found["right"] == [True] * 5
    assert found["deaths"] == {}


def test_the_shortage_is_counted_and_each_worker_says_it_once(found: dict[str, Any]) -> None:
    assert found["counted"] >= 1
    assert 1 <= len(found["warnings"]) <= 3

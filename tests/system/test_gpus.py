"""A whole server on a machine with two GPUs, as far as NVML tells: the fake one."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client
from naiad.testing.server import Server, serve
from support.exposition import parsed, total
from support.fake_nvml import MIB, gpu, tell
from support.planted import plant_nvml
from support.waiting import wait_until

A, B = "GPU-0a", "GPU-0b"
TELLS = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

SEEN = os.environ.get("CUDA_VISIBLE_DEVICES", "all")


class TritonPythonModel:
    def initialize(self, args):
        self.words = [SEEN, args["model_instance_kind"], args["model_instance_device_id"]]

    def execute(self, requests):
        answer = np.array([word.encode() for word in self.words], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", answer)]) for _ in requests]
"""


TAKES = """
import os
from pathlib import Path

from support import fake_nvml

told = Path(os.environ[fake_nvml.VARIABLE])
first, *others = fake_nvml._told("")
fake_nvml.tell(told, {**first, "used": first["used"] + 400 * fake_nvml.MIB}, *others)
"""
"""As long as one instance at a time is loaded on a GPU, this counts right."""


def put(repository: Path, name: str, groups: str, more: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(TELLS + more)
    (repository / name / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input { name: "x" data_type: TYPE_FP32 dims: 1 }\n'
        f'output {{ name: "y" data_type: TYPE_STRING dims: 3 }}\n{groups}\n'
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    repository = tmp_path / "models"
    put(repository, "auto", "")
    put(repository, "second", "instance_group { kind: KIND_GPU gpus: 1 }")
    put(repository, "processor", "instance_group { kind: KIND_CPU }")
    put(repository, "large", "instance_group { kind: KIND_GPU gpus: 0 count: 3 }", TAKES)
    put(repository, "absent", "instance_group { kind: KIND_GPU gpus: [ 0, 7 ] }")
    told = tmp_path / "nvml.json"
    tell(told, gpu(A, total=1000 * MIB, used=0), gpu(B, total=1000 * MIB, used=0))
    environment = plant_nvml(tmp_path / "planted", told) | {"CUDA_VISIBLE_DEVICES": "0,1"}
    arguments = ["--gpus", "all", "--metrics-port", "0"]
    with serve(repository, arguments=arguments, environment=environment) as server:
        yield server


def told_by(client: Client, model: str) -> list[str]:
    answer = client.infer(model, {"x": np.zeros(1, np.float32)})
    return [word.decode() for word in answer["y"]]


def test_each_instance_sees_its_own_gpu(server: Server) -> None:
    client = server.client()
    assert f"GPUs: 0 {A} (Fake GPU), 1 {B} (Fake GPU)" in server.log
    rows = [one for one in client.status()["instances"] if one["name"]]
    devices = {one["name"]: one["device"] for one in rows if one["model"] != "large"}
    assert devices == {
        "auto_0_gpu0": f"gpu:{A}",
        "auto_0_gpu1": f"gpu:{B}",
        "second_0_0_gpu1": f"gpu:{B}",
        "processor_0_0": "cpu",
    }
    assert told_by(client, "second") == [B, "GPU", "0"]
    assert told_by(client, "processor") == ["0,1", "CPU", "0"]
    assert told_by(client, "auto")[0] in (A, B)
    (absent,) = [one for one in client.index() if one["name"] == "absent"]
    assert absent["reason"] == (
        f'instance_group[0] "absent_0": no GPU 7; valid ids are 0 (gpu:{A}), 1 (gpu:{B})'
    )

    # The third does not fit: the two others serve, and the log has both numbers.
    wait_until(lambda: "large_0_2_gpu0 does not serve:" in server.log, "its refusal")
    needs = f"it needs {400 * MIB} bytes of GPU memory, as its first instance took, and {200 * MIB}"
    assert f"{needs} of {1000 * MIB} bytes are free on {A}" in server.log
    (large,) = [one for one in client.status()["models"] if one["name"] == "large"]
    assert (large["state"], large["instances_ready"]) == ("READY", 2)
    assert told_by(client, "large") == [A, "GPU", "0"]

    with urllib.request.urlopen(server.metrics_url, timeout=20) as page:
        found = parsed(page.read())
    assert total(found, "nv_gpu_memory_used_bytes", gpu_uuid=A) == 800 * MIB
    assert total(found, "nv_gpu_memory_total_bytes", gpu_uuid=B) == 1000 * MIB
    assert total(found, "naiad_instance_gpu_need_bytes", model="large") == 400 * MIB

    # Another broker numbers them alike, and knows what an instance takes.
    os.kill(server.pids["broker"], signal.SIGKILL)
    assert told_by(client, "second") == [B, "GPU", "0"]
    again = {one["name"]: one["device"] for one in client.status()["instances"] if one["name"]}
    assert devices.items() <= again.items()

"""A whole server on a machine with two GPUs, as far as NVML tells: the fake one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client
from naiad.testing.server import Server, serve
from support.fake_nvml import gpu, tell
from support.planted import plant_nvml

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


def put(repository: Path, name: str, groups: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(TELLS)
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
    put(repository, "absent", "instance_group { kind: KIND_GPU gpus: [ 0, 7 ] }")
    told = tmp_path / "nvml.json"
    tell(told, gpu(A), gpu(B))
    environment = plant_nvml(tmp_path / "planted", told)
    with serve(repository, arguments=["--gpus", "all"], environment=environment) as server:
        yield server


def told_by(client: Client, model: str) -> list[str]:
    answer = client.infer(model, {"x": np.zeros(1, np.float32)})
    return [word.decode() for word in answer["y"]]


def test_each_instance_sees_its_own_gpu(server: Server) -> None:
    client = server.client()
    assert f"GPUs: 0 {A} (Fake GPU), 1 {B} (Fake GPU)" in server.log
    devices = {one["name"]: one["device"] for one in client.status()["instances"] if one["name"]}
    assert devices == {
        "auto_0_gpu0": f"gpu:{A}",
        "auto_0_gpu1": f"gpu:{B}",
        "second_0_0_gpu1": f"gpu:{B}",
        "processor_0_0": "cpu",
    }
    assert told_by(client, "second") == [B, "GPU", "0"]
    everything = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    assert told_by(client, "processor") == [everything, "CPU", "0"]
    assert told_by(client, "auto")[0] in (A, B)
    (absent,) = [one for one in client.index() if one["name"] == "absent"]
    assert absent["reason"] == (
        f'instance_group[0] "absent_0": no GPU 7; valid ids are 0 (gpu:{A}), 1 (gpu:{B})'
    )

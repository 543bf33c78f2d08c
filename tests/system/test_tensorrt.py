"""A whole server with a TensorRT engine: the real worker and backend over the planted fakes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import naiad
from naiad.client import Client
from naiad.testing.server import Server, serve
from naiad.worker.exit_codes import ExitCode
from support.engines import AFFINE, put_plan, random, write_affine
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PLANTED = "import sys\nfrom support import {0}\nsys.modules[__name__] = {0}\n"


def plant(folder: Path) -> str:
    """A PYTHONPATH on which the fakes are found before any real package."""
    bindings = folder / "cuda" / "bindings"
    bindings.mkdir(parents=True)
    for package in (bindings.parent, bindings):
        (package / "__init__.py").touch()
    (bindings / "runtime.py").write_text(PLANTED.format("fake_cudart"))
    (folder / "tensorrt.py").write_text(PLANTED.format("fake_trt"))
    source = Path(naiad.__file__).parent.parent
    return os.pathsep.join(map(str, (folder, source, ROOT / "tests")))


@pytest.fixture
def trip(tmp_path: Path) -> Path:
    """While this file is there, the next execution traps on the GPU (and removes it)."""
    return tmp_path / "trip"


@pytest.fixture
def server(tmp_path: Path, trip: Path) -> Iterator[Server]:
    repository = tmp_path / "models"
    directory = write_affine(repository / "affine")
    put_plan(directory, AFFINE, trip=str(trip))
    (directory / "1" / "model.onnx").unlink()
    planted = {"PYTHONPATH": plant(tmp_path / "planted")}
    with serve(repository, arguments=["--gpus", "GPU-fake"], environment=planted) as server:
        yield server


def ask(client: Client, rows: int) -> None:
    """Many at once, so that there are batches."""
    arrays = [random(rows, 4, seed=seed) for seed in range(20)]
    pending = [client.submit("affine", {"x": array}) for array in arrays]
    for array, future in zip(arrays, pending, strict=True):
        np.testing.assert_array_equal(future.result(30)["y"], 2 * array + 1)


def test_an_engine_is_served_and_a_lost_gpu_costs_no_request(server: Server, trip: Path) -> None:
    client = server.client()
    ask(client, 1)
    ask(client, 4)
    trip.touch()
    ask(client, 2)
    assert not trip.exists()
    wait_until(lambda: f"ended: exit code {ExitCode.INSTANCE_LOST:d}" in server.log, "its end")
    lost = next(line for line in server.log.splitlines() if "ends at once" in line)
    assert "model 'affine' on GPU 0 (GPU-fake): running the batch: CUDA error 719" in lost

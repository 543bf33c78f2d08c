"""A whole server with a TensorRT engine: the real worker and backend over the planted fakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client
from naiad.testing.server import Server, serve
from naiad.worker.exit_codes import ExitCode
from support.engines import AFFINE, plant, put_plan, random, write_affine
from support.waiting import wait_until


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
    assert "model 'affine' on GPU 0 (GPU-fake): " in lost  # whichever call met it first
    assert ": CUDA error 719 " in lost

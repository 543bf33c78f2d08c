"""A worker whose device executes one batch takes the next one in, and copies it there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import posix_ipc
import pytest

from naiad.protocol import messages as m
from naiad.protocol.endpoints import Endpoints
from naiad.shm.page import PageReader
from naiad.shm.segment import Mapping
from support import engines
from support.fake_worker_broker import FakeWorkerBroker
from support.waiting import wait_until

ROWS = 2
SIZE = ROWS * 16
X = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}
CONFIG = {
    "name": "affine",
    "backend": "tensorrt",
    "max_batch_size": 8,
    "dynamic_batching": {},
    "input": [X],
    "output": [{**X, "name": "y"}],
    "instance_group": [{"name": "affine", "kind": "KIND_GPU"}],
}


class Files:
    """What the fake device and this test tell each other."""

    def __init__(self, folder: Path) -> None:
        self.hold = folder / "hold"
        self.journal = folder / "journal"

    def moved(self) -> int:
        """Copies of SIZE bytes so far."""
        return self.journal.read_text().split().count(str(SIZE)) if self.journal.exists() else 0


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def loaded(tmp_path: Path, files: Files, broker: FakeWorkerBroker, start: Any) -> FakeWorkerBroker:
    directory = engines.write_affine(tmp_path / "affine")
    engines.put_plan(directory, [{"x": [[1, 4], [1, 4], [8, 4]]}], hold=str(files.hold))
    path = engines.plant(tmp_path / "planted")
    start(PYTHONPATH=path, FAKE_CUDART_JOURNAL=str(files.journal))
    broker.welcome()
    loaded = broker.load(CONFIG, directory=str(directory), kind="KIND_GPU")
    assert loaded.message.error is None, loaded.message.error
    return broker


def request(ident: int, place: m.Place, number: int, offset: int = 0) -> m.BatchRequest:
    tensor = m.Tensor("x", "FP32", (ROWS, 4), place, number, offset, SIZE)
    return m.BatchRequest(id=ident, session=1, label=f"r{ident}", inputs=(tensor,), outputs=())


def check(broker: FakeWorkerBroker, batch: int, array: Any) -> None:
    results, frames = broker.expect(m.Results)
    assert (results.batch, results.results[0].error) == (batch, None)
    found = np.frombuffer(frames[0], np.float32).reshape(ROWS, 4)
    np.testing.assert_array_equal(found, 2 * array + 1)


def test_the_next_batch_is_copied_while_one_is_executed(
    loaded: FakeWorkerBroker, files: Files, run_dir: str
) -> None:
    """What its client writes into the region after that is not seen any more."""
    first, second = (engines.random(ROWS, 4, seed=seed) for seed in (1, 2))
    memory = posix_ipc.SharedMemory(f"/test-{secrets.token_hex(8)}", posix_ipc.O_CREX, size=4096)
    status = os.fstat(memory.fd)
    found = m.Region(1, memory.name, status.st_dev, status.st_ino, 4096)
    try:
        with Mapping.open(found, writable=True) as mapping:
            mapping.slice(64, SIZE, writable=True)[:] = second.tobytes()
            files.hold.touch()
            one = loaded.send_batch([request(1, m.Place.INLINE, 0)], [first.tobytes()])
            wait_until(lambda: files.moved() == 1, "the first batch on the device")
            two = loaded.send_batch([request(2, m.Place.REGION, 1, 64)], regions=[found])
            wait_until(lambda: files.moved() == 2, "the second batch on the device")
            page = PageReader.open(Endpoints(run_dir).page_path("s0"))
            assert page.read()._asdict()["executing"] == one  # type: ignore[union-attr]
            page.close()
            mapping.slice(64, SIZE, writable=True)[:] = bytes(SIZE)
            files.hold.unlink()
            check(loaded, one, first)
            check(loaded, two, second)
    finally:
        memory.close_fd()
        memory.unlink()

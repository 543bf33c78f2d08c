"""A client process that holds shared memory, to be killed: `python -m support.shm_client RUN_DIR`.

Sends large arrays, checks the answers, keeps the results, says "holding" and waits for its end;
then it checks them again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Self

import numpy as np

from naiad.client import Client
from support.shm_process import PYTHON_PATH

SHAPE = (1, 3, 224, 224)
RESULTS_HELD = 3


class ShmClient:
    """The process as the test sees it; ready when constructed."""

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.shm_client", os.fspath(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        )

    def wait_until_holding(self) -> Self:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"holding\n", self.process.wait()
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def _hold(run_dir: str) -> None:
    with Client(run_dir, transport="shm") as client:
        held = []
        for seed in range(RESULTS_HELD):
            given = np.random.default_rng(seed).random(SHAPE, np.float32)
            result = client.infer("identbig", {"INPUT0": given})["OUTPUT0"]
            assert (result == given).all()
            held.append(result)
        print("holding", flush=True)
        sys.stdin.read()
        for seed, result in enumerate(held):
            assert (result == np.random.default_rng(seed).random(SHAPE, np.float32)).all(), seed


if __name__ == "__main__":
    _hold(sys.argv[1])

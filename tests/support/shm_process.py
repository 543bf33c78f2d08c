"""A process that owns or maps shared memory, to be killed: the other half of the shm tests.

    with ShmProcess("own", server, "client", "100000") as owner:
        owner.regions ...

Modes: `own SERVER ROLE SIZE` makes a pool and takes SIZE bytes from it, filled with 0x61.
`map` reads a region from stdin, maps it and writes 0x62 into its first byte.
Ends when its stdin does.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from naiad.protocol.messages import Region
from naiad.shm.pool import Pool
from naiad.shm.segment import Mapping

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PATH = f"{ROOT / 'src'}:{ROOT / 'tests'}"


class ShmProcess:
    """The process as its parent sees it; `regions` are those that it owns or has mapped."""

    def __init__(self, *arguments: str, region: Region | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.shm_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if region is not None:
            self._process.stdin.write(json.dumps(region) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{arguments} ended at once: {self._process.wait()}"
        self.regions = tuple(Region(*fields) for fields in json.loads(line))

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Let it end by itself, cleanly."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=10) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _own(server: str, role: str, size: str) -> None:
    with Pool(server, role, itertools.count(1).__next__) as pool:
        loan = pool.allocate(int(size))
        assert loan is not None
        loan.view[:] = b"a" * loan.size
        print(json.dumps(pool.regions()), flush=True)
        sys.stdin.read()


def _map() -> None:
    region = Region(*json.loads(sys.stdin.readline()))
    with Mapping.open(region, writable=True) as mapping:
        mapping.slice(0, 1, writable=True)[0] = ord("b")
        print(json.dumps([region]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    _own(*rest) if mode == "own" else _map()

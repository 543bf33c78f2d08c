"""What an empty worker takes of the GPU's memory: a CUDA context, and nothing else.

Seen by a process that has a context already, as what is free before and after; so another program
that takes or gives memory at the same time falsifies it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from time import monotonic, sleep
from typing import Any, Final

from gpu_checks import rows
from gpu_checks.gpu import Gpu
from gpu_checks.peers import Peer, PeerFailed
from gpu_checks.rows import Row
from gpu_checks.steps import Options

ROUNDS: Final = 3
LAZY: Final = {"CUDA_MODULE_LOADING": "LAZY"}
EAGER: Final = {"CUDA_MODULE_LOADING": "EAGER"}
DAEMON: Final = "nvidia-cuda-mps-control"
DAEMON_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.05
SETTLE_SECONDS: Final = 0.2
SETTLE_SECONDS_MAX: Final = 3.0


def measure(options: Options) -> Iterator[Row]:
    gpu = Gpu()
    for name, environment in (("CUDA_MODULE_LOADING=LAZY", LAZY), ("=EAGER", EAGER)):
        taken = median(_taken(gpu, environment) for _ in range(ROUNDS))
        yield rows.told(f"an empty worker, {name}", taken / (1 << 20), "MiB")
    what = "an empty worker under MPS, beside another"
    if shutil.which(DAEMON) is None:
        yield rows.skipped(what, f"no {DAEMON} on PATH")
        return
    try:
        yield _under_mps(gpu, what)
    except (PeerFailed, OSError, subprocess.SubprocessError) as error:
        yield rows.skipped(what, f"MPS does not run here: {error}")


def _taken(gpu: Gpu, environment: Mapping[str, str]) -> int:
    """Bytes that are gone while one more process has a context."""
    before = _settled(gpu)
    with Peer("empty-worker", environment) as peer:
        peer.ask("start")
        return int(before - gpu.call("cudaMemGetInfo")[0])


def _settled(gpu: Gpu) -> int:
    """What is free once the process before this one has given all of its memory back."""
    end = monotonic() + SETTLE_SECONDS_MAX
    free, before = int(gpu.call("cudaMemGetInfo")[0]), -1
    while free != before and monotonic() < end:
        sleep(SETTLE_SECONDS)
        free, before = int(gpu.call("cudaMemGetInfo")[0]), free
    return free


def _under_mps(gpu: Gpu, what: str) -> Row:
    with _daemon() as (environment, servers):
        settings = {**LAZY, **environment}
        with Peer("empty-worker", settings) as first:  # it has the server started
            first.ask("start")
            if not servers():
                return rows.skipped(what, "the process did not become a client of MPS")
            taken = median(_taken(gpu, settings) for _ in range(ROUNDS))
    return rows.told(what, taken / (1 << 20), "MiB", "context alone, LAZY")


@contextmanager
def _daemon() -> Iterator[tuple[dict[str, str], Any]]:
    """MPS of our own, in a folder of its own: what its clients need, and which servers it has."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **own}
        # In the foreground, so that it ends with this step whatever happens.
        process = subprocess.Popen(
            [DAEMON, "-f"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

        def said(command: str) -> str:
            return subprocess.run(
                [DAEMON], input=command, env=environment, text=True, capture_output=True,
                timeout=DAEMON_SECONDS_MAX, check=False,
            ).stdout.strip()  # fmt: skip

        try:
            end = monotonic() + DAEMON_SECONDS_MAX
            while not os.path.exists(f"{folder}/control"):
                if process.poll() is not None or monotonic() > end:
                    raise PeerFailed(f"{DAEMON} -f made no {folder}/control")
                sleep(POLL_SECONDS)
            yield own, lambda: said("get_server_list")
            said("quit")
            process.wait(DAEMON_SECONDS_MAX)
        finally:
            process.kill()
            process.wait()


def empty_worker() -> Generator[Any, Any, None]:
    """The other process: a context, until its input ends."""
    yield
    Gpu()
    yield "started"

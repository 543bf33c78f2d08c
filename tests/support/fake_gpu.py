"""The fake CUDA runtime as scripts/gpu_check uses it: what fake_cuda_ipc is, and time.

Copies take as long as BYTES_PER_SECOND says, on their stream, and events know when they were
reached. Kernels are fake_gpu_driver's; `plant` puts all of it where `cuda.bindings` is looked for.
"""

from __future__ import annotations

import ctypes
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from support import fake_cuda_ipc as base
from support import fake_cudart as cudart

BYTES_PER_SECOND = 2e9
ROOT = Path(__file__).resolve().parents[2]
PLANTED = "import sys\nfrom support import {0}\nsys.modules[__name__] = {0}\n"
MODULES = {"runtime": "fake_gpu", "driver": "fake_gpu_driver", "nvrtc": "fake_gpu_nvrtc"}
"""Of cuda.bindings, by those of tests/support that stand for them."""


def __getattr__(name: str) -> Any:
    return getattr(base, name)


def plant(folder: Path) -> dict[str, str]:
    """The environment of processes that find the fakes before any real package."""
    bindings = folder / "cuda" / "bindings"
    bindings.mkdir(parents=True)
    for package in (bindings.parent, bindings):
        (package / "__init__.py").touch()
    for name, fake in MODULES.items():
        (bindings / f"{name}.py").write_text(PLANTED.format(fake))
    shared = folder / "shared"
    shared.mkdir()
    path = os.pathsep.join(map(str, (folder, ROOT / "src", ROOT / "tests")))
    return {"PYTHONPATH": path, base.FOLDER: str(shared)}


def cudaFree(devPtr: int) -> Any:
    """Of nothing it is the usual way to make a context."""
    return base.cudaFree(devPtr) if devPtr else (cudart.cudaError_t.cudaSuccess,)


def cudaDriverGetVersion() -> Any:
    return cudart.cudaError_t.cudaSuccess, 13000


def cudaRuntimeGetVersion() -> Any:
    return cudart.cudaError_t.cudaSuccess, 13000


@cudart._call(0)
def cudaMemsetAsync(devPtr: int, value: int, count: int, stream: Any) -> Any:
    if not cudart.device.holds(devPtr, count):
        return cudart.cudaError_t.cudaErrorInvalidValue
    stream.add(partial(ctypes.memset, devPtr, value, count))


def cudaMemcpyAsync(dst: int, src: int, count: int, kind: Any, stream: Any) -> Any:
    stream.add(partial(time.sleep, count / BYTES_PER_SECOND))
    return base.cudaMemcpyAsync(dst, src, count, kind, stream)


def cudaEventRecord(event: Any, stream: Any) -> Any:
    cudart.device.streams[int(stream)].add(partial(_note_time, event))
    return base.cudaEventRecord(event, stream)


def _note_time(event: Any) -> None:
    event.reached_at = time.perf_counter()


@cudart._call(1)
def cudaEventElapsedTime(start: Any, end: Any) -> Any:
    return ((end.reached_at - start.reached_at) * 1000,)


@cudart._call(0)
def cudaStreamSynchronize(stream: Any) -> Any:
    """It tells of what went wrong meanwhile."""
    stream.drain()
    return cudart.cudaError_t(cudart.device.sticky) if cudart.device.sticky else None

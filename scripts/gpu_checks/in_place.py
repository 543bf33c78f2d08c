"""naiad's backend over tensors that lie on the GPU: read and written where they are, by no copy."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import numpy as np

from gpu_checks import kernel_trt, rows
from gpu_checks.backend_requests import ELEMENT_BYTES, Input, loaded, with_kernel
from gpu_checks.gpu import Gpu, floats_at
from gpu_checks.rows import Row
from naiad.shm.cuda.errors import RUNTIME_MODULE
from naiad.worker.backends.base import DeviceMemory, DeviceSpan, ModelRequest

WIDTH: Final = 1024
ROWS_MAX: Final = 32
ROWS: Final = 3
"""Fewer than the profile admits, whose bound a larger output would need."""


class CountingCopies:
    """The CUDA runtime, which counts what the backend copies."""

    def __init__(self) -> None:
        self._runtime = import_module(RUNTIME_MODULE)
        self.copies = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: Any) -> Any:
        self.copies += 1
        return self._runtime.cudaMemcpyAsync(dst, src, count, kind, stream)


def prove() -> Iterator[Row]:
    counting = CountingCopies()

    def importer(name: str) -> Any:
        return counting if name == RUNTIME_MODULE else with_kernel(name)

    gpu = Gpu()
    stream = gpu.stream()
    count = ROWS * WIDTH
    size = count * ELEMENT_BYTES
    with (
        loaded(kernel_trt.plan(WIDTH, ROWS_MAX), importer) as (backend, _),
        gpu.pinned(size) as host,
    ):
        numbers = floats_at(host, count)
        numbers[:] = np.arange(count) % 1000
        expected = 2 * numbers + 1
        x, y = gpu.malloc(size), gpu.malloc(size)
        gpu.to_device(x, host, size, stream)
        gpu.finish(stream)
        given = Input("x", "FP32", (ROWS, WIDTH), memoryview(b""))
        memory = DeviceMemory({"x": DeviceSpan(x, size)}, {"y": DeviceSpan(y, size)})
        counting.copies = 0
        (answer,) = backend.execute([ModelRequest("", {"x": given}, ("y",), device=memory)])
        copies = counting.copies
        gpu.to_host(host, y, size, stream)
        gpu.finish(stream)
        fault = str(answer) if isinstance(answer, Exception) else ""
        if not fault and not np.array_equal(numbers, expected):
            fault = "other numbers"
        gpu.free(x, y)
    what = f"{ROWS} rows on the GPU, of {ROWS_MAX} that the profile admits: 2x + 1"
    yield rows.holds(what, not fault, "equal" if not fault else "not so", reason=fault)
    what = "and they are read and written in place"
    yield rows.holds(what, not copies, f"{copies} copies", bar="0 copies", reason="it is copied")

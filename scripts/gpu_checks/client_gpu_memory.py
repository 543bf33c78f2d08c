"""A client's tensors on the GPU, through a whole server: read and written where they are.

The client's kernel is late, and nobody waits for it but the worker, by the event that it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from gpu_checks import rows
from gpu_checks.gpu import Gpu, floats_at
from gpu_checks.kernels import Kernels
from gpu_checks.rows import Row

LATE_US: Final = 200_000
ANSWER_SECONDS_MAX: Final = 30.0


def prove(client: Any, model: str, shape: tuple[int, int]) -> Iterator[Row]:
    """With a naiad.client.Client of a server whose model gives y = 2x + 1."""
    gpu = Gpu()
    kernels = Kernels(gpu)
    stream = gpu.stream()
    count = shape[0] * shape[1]
    size = 4 * count
    inputs, outputs = client.cuda_region(size, event=True), client.cuda_region(size)
    source = gpu.malloc(size)
    written = gpu.event()
    with gpu.pinned(size) as host:
        numbers = floats_at(host, count)
        numbers[:] = np.arange(count) % 1000
        expected = 2 * (2 * numbers + 1) + 1
        gpu.to_device(source, host, size, stream)
        kernels.load(stream)
        kernels.busy(stream, LATE_US)
        kernels.affine(stream, source, inputs.memory.address, count)
        gpu.record(written, stream)
        inputs.written(int(stream))
        pending = client.submit(
            model, [inputs.input("x", "FP32", shape)], outputs={"y": outputs.place()}
        )
        is_late = not gpu.is_reached(written)
        found = pending.result(ANSWER_SECONDS_MAX)["y"]
        gpu.to_host(host, outputs.memory.address, size, stream)
        gpu.finish(stream)
        equal = bool(np.array_equal(numbers, expected))
    is_there = getattr(found, "address", 0) == outputs.memory.address
    what = "a client's tensors on the GPU: written late, read when they are"
    reason = "other numbers" if is_late else "the client's kernel was not late"
    yield rows.holds(what, equal and is_late, "equal" if equal else "not so", reason=reason)
    measured = "where the client wants it" if is_there else "elsewhere"
    yield rows.holds("and the answer stays on the GPU", is_there, measured, reason="it is copied")
    for region in (inputs, outputs):
        client.detach(region)
    gpu.call("cudaEventDestroy", written)
    gpu.free(source)

"""Errors of the device: each is told as naiad tells it, and harms nobody but its own process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

from gpu_checks import rows
from gpu_checks.gpu import CudaFailed, Gpu
from gpu_checks.kernels import Kernels
from gpu_checks.peers import Peer
from gpu_checks.rows import Row
from gpu_checks.steps import Options
from naiad.protocol.errors import ModelError
from naiad.shm.cuda.errors import STICKY_ERRORS
from naiad.worker.backends.base import InstanceLost
from naiad.worker.backends.tensorrt.cuda import Cuda

COUNT: Final = 1024
TOLD_CHARS_MAX: Final = 70


def prove(options: Options) -> Iterator[Row]:
    gpu = Gpu()
    cuda = Cuda(gpu.runtime, "gpu_check", 0)
    total = gpu.call("cudaMemGetInfo")[1]
    yield _out_of_memory(cuda, 2 * int(total))
    address = cuda.allocate(COUNT, "a test")
    cuda.free(address)
    yield rows.holds("the next allocation works", address != 0, "yes")
    with Peer("neighbour") as neighbour:
        neighbour.ask("start")
        yield from _trapped(gpu, cuda)
        works = neighbour.ask("work")
    what = "another process on the same GPU works on"
    yield rows.holds(what, works == "works", str(works), bar="works", reason="harmed as well")


def _out_of_memory(cuda: Cuda, size: int) -> Row:
    what = f"{size >> 30} GiB are refused, with both sizes"
    try:
        cuda.allocate(size, "a test")
    except ModelError as error:
        is_told = "out of GPU memory" in error.message and str(size) in error.message
        return rows.holds(what, is_told, _begun(error.message), reason=error.message)
    return rows.failed(what, "they were given")


def _trapped(gpu: Gpu, cuda: Cuda) -> Iterator[Row]:
    kernels = Kernels(gpu)
    stream = gpu.stream()
    kernels.trap(stream)
    code = 0
    try:
        gpu.finish(stream)
    except CudaFailed as error:
        code = error.code
    what = "a kernel that traps is an error that stays"
    yield rows.holds(what, code in STICKY_ERRORS, f"error {code}", reason="not a sticky one")
    what = "and naiad's worker ends of it"
    try:
        cuda.call("cudaMemGetInfo")
    except InstanceLost as lost:
        yield rows.holds(what, True, _begun(str(lost)))
    except ModelError as error:
        yield rows.failed(what, f"only the call fails: {error.message}")
    else:
        yield rows.failed(what, "the next call works")


def _begun(text: str) -> str:
    return f"{text[:TOLD_CHARS_MAX]} ..."


def neighbour() -> Generator[Any, Any, None]:
    """The other process: it has a stream, and uses it when asked."""
    yield
    gpu = Gpu()
    kernels = Kernels(gpu)
    stream = gpu.stream()
    kernels.load(stream)
    yield "started"
    kernels.busy(stream, 10)
    gpu.finish(stream)
    yield "works"

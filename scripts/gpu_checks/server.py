"""A whole server on the GPU: naiad's broker, worker and client, with the kernel as its engine."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

import numpy as np

from gpu_checks import client_gpu_memory, kernel_trt, rows
from gpu_checks.gpu import CudaFailed, host_microseconds
from gpu_checks.peers import python_path
from gpu_checks.rows import Row
from gpu_checks.steps import Options

NEEDED: Final = {
    "zmq": "pyzmq",
    "msgpack": "msgpack",
    "posix_ipc": "posix-ipc",
    "google.protobuf": "protobuf",
    "click": "click",
    "rich": "rich",
    "prometheus_client": "prometheus-client",
    "httptools": "httptools",
}
"""What naiad itself requires beside NumPy: module and package."""
WIDTH: Final = 1024
ROWS_MAX: Final = 32
BUSY_US: Final = 200.0
MANY: Final = 500
LATENCY_CALLS: Final = 300
UUID_BYTES: Final = 16
UNREGISTERED: Final = "is not registered with CUDA"
"""What the backend says once, when it goes on without."""
ANSWER_SECONDS_MAX: Final = 30.0
PLANTED: Final = (
    "import sys\nfrom gpu_checks import kernel_trt\nsys.modules[__name__] = kernel_trt\n"
)
CONFIG: Final = f"""\
backend: "tensorrt"
max_batch_size: {ROWS_MAX}
dynamic_batching {{}}
instance_group [ {{ kind: KIND_GPU gpus: [ 0 ] }} ]
"""


def prove(options: Options) -> Iterator[Row]:
    what = "a whole server runs a kernel as its engine"
    missing = [package for module, package in NEEDED.items() if not _is_there(module)]
    if missing:
        reason = f"needs {', '.join(missing)}; give their wheels with --wheels DIR"
        yield rows.skipped(what, reason)
        return
    from naiad.testing.server import serve

    with TemporaryDirectory(prefix="gpu-check-server-") as folder:
        repository = Path(folder, "models")
        version = repository / "kernel" / "1"
        version.mkdir(parents=True)
        (version / "model.plan").write_bytes(kernel_trt.plan(WIDTH, ROWS_MAX, busy_us=BUSY_US))
        (version.parent / "config.pbtxt").write_text(CONFIG)
        planted = Path(folder, "planted")
        planted.mkdir()
        (planted / "tensorrt.py").write_text(PLANTED)
        with serve(
            repository,
            arguments=["--gpus", _uuid()],
            environment={"PYTHONPATH": python_path(str(planted))},
        ) as server:
            client = server.client()
            arrays = [_random(1 + number % 4, number) for number in range(MANY)]
            begin = perf_counter()
            pending = [client.submit("kernel", {"x": array}) for array in arrays]
            answers = [one.result(ANSWER_SECONDS_MAX)["y"] for one in pending]
            seconds = perf_counter() - begin
            wrong = sum(
                not np.array_equal(answer, 2 * array + 1)
                for answer, array in zip(answers, arrays, strict=True)
            )
            measured = f"{MANY - wrong} of {MANY}"
            yield rows.holds(f"{MANY} requests at once: 2x + 1", not wrong, measured)
            yield rows.told("and their rate", MANY / seconds, "requests/s")
            large = _random(ROWS_MAX, MANY)
            equal = np.array_equal(client.infer("kernel", {"x": large})["y"], 2 * large + 1)
            yield rows.holds(
                f"a request of {large.nbytes >> 10} KiB, in shared memory",
                equal,
                "equal" if equal else "not so",
            )
            fault = next((line for line in server.log.splitlines() if UNREGISTERED in line), "")
            what = "the worker registered the client's memory"
            yield rows.holds(what, not fault, "no warning", reason=fault)
            yield from client_gpu_memory.prove(client, "kernel", (ROWS_MAX, WIDTH))
            calls = []
            for _ in range(LATENCY_CALLS):
                begin = perf_counter()
                client.infer("kernel", {"x": arrays[0]})
                calls.append(host_microseconds(begin))
            note = f"client to client, 4 KiB, a kernel of {BUSY_US:.0f} us, p50"
            over = median(calls) - BUSY_US
            yield rows.told("a request, over the bare kernel", over, "us", note)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _uuid() -> str:
    """Of the GPU, as `nvidia-smi -L` writes it; asked of the driver, as NVML may not be here."""
    driver = import_module("cuda.bindings.driver")
    driver.cuInit(0)
    error, found = driver.cuDeviceGetUuid(0)
    if int(error):
        raise CudaFailed("cuDeviceGetUuid", error)
    return f"GPU-{uuid.UUID(bytes=ctypes.string_at(found.getPtr(), UUID_BYTES))}"


def _random(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    numbers = np.random.default_rng(seed).integers(-1000, 1000, (count, WIDTH))
    return numbers.astype(np.float32)

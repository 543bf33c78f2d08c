"""naiad's TensorRT backend without a server: a model, and requests in a client's segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from gpu_checks import kernel_trt
from gpu_checks.gpu import Segment
from naiad.config.model import ModelConfig
from naiad.worker.backends.base import ModelInstance, ModelRequest
from naiad.worker.backends.tensorrt.backend import TensorRTBackend

ELEMENT_BYTES: Final = 4


@dataclass(slots=True)
class Input:
    """As base.InputTensor."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    buffer: memoryview

    def array(self) -> Any:
        return np.frombuffer(self.buffer, np.float32).reshape(self.shape)


def with_kernel(name: str) -> Any:
    """An importer whose TensorRT is the kernel."""
    return kernel_trt if name.startswith("tensorrt") else import_module(name)


@contextmanager
def loaded(
    plan: bytes,
    importer: Callable[[str], Any] = import_module,
    config: Mapping[str, Any] | None = None,
) -> Iterator[tuple[TensorRTBackend, ModelConfig]]:
    """The backend with this plan, warmed up."""
    with TemporaryDirectory(prefix="gpu-check-model-") as folder:
        version = Path(folder, "model", "1")
        version.mkdir(parents=True)
        (version / "model.plan").write_bytes(plan)
        told = {"name": "model", "backend": "tensorrt", **(config or {})}
        instance = ModelInstance(
            "model", 1, "model_0_gpu0", str(version.parent), "KIND_GPU", 0, 0,
            ModelConfig.from_json(told),
        )  # fmt: skip
        backend = TensorRTBackend(importer)
        completed = backend.load(instance)
    backend.warm_up()
    try:
        yield backend, completed
    finally:
        backend.unload()


class Batch:
    """Requests for y = 2x + 1 in a client's segment: all inputs, then the places of outputs."""

    def __init__(self, memory: Segment, rows: Sequence[int], width: int, seed: int = 1) -> None:
        total = sum(rows) * width
        size = total * ELEMENT_BYTES
        assert 2 * size <= memory.size
        view = memoryview(memory.memory)
        self._x = np.frombuffer(view[:size], np.float32)
        self._y = np.frombuffer(view[size : 2 * size], np.float32)
        self._x[:] = np.random.default_rng(seed).integers(-1000, 1000, total)
        self.requests: list[ModelRequest] = []
        begin = 0
        for count in rows:
            end = begin + count * width * ELEMENT_BYTES
            given = Input("x", "FP32", (count, width), view[begin:end].toreadonly())
            place = np.frombuffer(view[size + begin : size + end], np.uint8)
            self.requests.append(ModelRequest("", {"x": given}, ("y",), {"y": place}))
            begin = end

    def fault(self, answers: Sequence[Any]) -> str:
        """What is wrong with the answers, or nothing."""
        if len(answers) != len(self.requests):
            return f"{len(answers)} answers"
        for request, answer in zip(self.requests, answers, strict=True):
            if isinstance(answer, Exception):
                return str(answer)
            place = request.places["y"]
            buffer = np.frombuffer(answer.outputs[0].buffer, np.uint8)
            if buffer.ctypes.data != place.ctypes.data or buffer.nbytes != place.nbytes:
                return "an output that is not in the client's memory"
        return "" if bool((self._y == 2 * self._x + 1).all()) else "other numbers"

    def clear(self) -> None:
        self._y[:] = 0

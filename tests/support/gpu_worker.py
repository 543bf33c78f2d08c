"""A worker with a TensorRT engine on a fake GPU, and a client with memory of both kinds.

What a worker does with its GPU comes in steps, from the load to the unload, each a function of a
`GpuWorker`: tests run them one by one, and make a call within one fail. Requests go through the
worker's own code (Execution), and their results are compared with what they should be.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from naiad.protocol import messages as m
from naiad.shm.cuda.errors import RUNTIME_MODULE
from naiad.shm.cuda.key import cuda_region
from naiad.shm.layout import RANDOM_BYTES, segment_name
from naiad.shm.segment import Segment
from naiad.worker.backends.tensorrt.backend import TensorRTBackend
from naiad.worker.device_regions import DeviceRegions
from naiad.worker.execution import ExecutedBatch, Execution
from naiad.worker.regions import RegionTable
from support import engines, fake_cuda_ipc, fake_cudart, fake_trt
from support.engines import on_gpu, put_plan
from support.onnx_models import write_echo
from support.worker_parts import batch_of, execution_with, inline, request_of

REGION = m.Place.REGION
ON_GPU, SHARED = 1, 2
"""The client's regions: 4096 bytes of GPU memory with an event, and a segment of 8192."""
NOT_SPLIT = {"naiad.split_failed_batches": {"string_value": "false"}}


def importer(name: str) -> Any:
    return fake_cuda_ipc if name == RUNTIME_MODULE else engines.importer(name)


@dataclass(frozen=True)
class Asked:
    """One request, and what each wanted output of it should be."""

    request: m.BatchRequest
    frames: Sequence[bytes]
    want: Mapping[str, Any]


@dataclass
class GpuWorker:
    """`errors` of requests, and which batch of a step each of these was in (`failed`). All other
    requests must be right."""

    directory: Path
    config: Mapping[str, Any]
    gpu: fake_cudart.Device = field(default_factory=fake_cuda_ipc.reset)
    errors: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    execution: Execution | None = None

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(7)
        content = self.numbers.standard_normal(1024).astype(np.float32)
        self.handle = fake_cuda_ipc.device_of_another(content.tobytes())
        key = segment_name("t", "client", os.getpid(), os.urandom(RANDOM_BYTES))
        self.segment = Segment.create(key, 8192, region_id=SHARED)
        event = fake_cuda_ipc.event_of_another()
        self.table = RegionTable(DeviceRegions(fake_cuda_ipc.loaded))
        self.table.define(
            [
                cuda_region(self.handle, 4096, 0, "theirs", event=event, region_id=ON_GPU),
                self.segment.region,
            ]
        )
        self.backend = TensorRTBackend(importer)
        fake_trt.get_plugin_registry().loaded.clear()

    def close(self) -> None:
        """As at the end of a process: first what is under way ends, as a lost worker does not wait
        for it; then all goes, so that nothing is forgotten late, on the next GPU."""
        for stream in self.gpu.streams.values():
            stream.captured = None
            stream.drain()
        self.execution = None
        del self.table, self.backend
        gc.collect()
        self.segment.close()
        self.gpu.close()

    # --- Steps ---------------------------------------------------------------------------------

    def load(self) -> None:
        instance = on_gpu(self.directory, self.config)
        config = self.backend.load(instance)
        self.execution = execution_with(self.backend, instance, config)

    def warm_up(self) -> None:
        self.backend.warm_up()

    def forget(self) -> None:
        self.table.forget([ON_GPU, SHARED])

    def unload(self) -> None:
        self.backend.unload()

    def run(self, *asked: Asked) -> None:
        """One batch."""
        self._check(self._execution.run(self._batch(asked), set()), asked)

    def run_behind(self, first: Sequence[Asked], second: Sequence[Asked]) -> None:
        """Two batches; the second is brought to the device, and begun, during the first."""
        batches = self._batch(first), self._batch(second)._replace(id=6)
        waiting = [batches[1]]
        self._execution.overlap(lambda: waiting.pop() if waiting else None, lambda _: True)
        self._check(self._execution.run(batches[0], set()), first)
        waiting.clear()  # if the first one failed before it could be brought
        self._check(self._execution.run(batches[1], set()), second, 2)

    @property
    def _execution(self) -> Execution:
        assert self.execution is not None
        return self.execution

    def _batch(self, asked: Sequence[Asked]) -> Any:
        """Each request has its frames behind those of the requests before it."""
        frames: list[bytes] = []
        requests = []
        for number, one in enumerate(asked, 1):
            before = len(frames)
            inputs = [
                tensor if tensor.place == REGION else tensor._replace(region=tensor.region + before)
                for tensor in one.request.inputs
            ]
            requests.append(one.request._replace(id=number, inputs=tuple(inputs)))
            frames += one.frames
        return batch_of(requests, frames, self.table)

    def _check(self, done: ExecutedBatch, asked: Sequence[Asked], number: int = 1) -> None:
        for one, result in zip(asked, done.results, strict=True):
            if result.error is not None:
                self.errors.append(result.error[1])
                self.failed.append(number)
                continue
            assert {tensor.name for tensor in result.outputs} == set(one.want)
            for tensor in result.outputs:
                want = one.want[tensor.name]
                found = np.frombuffer(self._content(tensor, done), want.dtype).reshape(want.shape)
                np.testing.assert_array_equal(found, want)

    def _content(self, tensor: m.Tensor, done: ExecutedBatch) -> bytes:
        end = tensor.offset + tensor.size
        if tensor.place != REGION:
            return bytes(done.frames[tensor.region][tensor.offset : end])
        if tensor.region == ON_GPU:
            return fake_cuda_ipc.content_of_another(self.handle)[tensor.offset : end]
        return bytes(self.segment.view[tensor.offset : end])

    # --- Requests ------------------------------------------------------------------------------

    def in_message(self, name: str, array: Any, **want: Any) -> Asked:
        datatype = {"float32": "FP32", "int64": "INT64"}[array.dtype.name]
        tensor = inline(name, datatype, array.shape, array.nbytes)
        return Asked(request_of(tensor), [array.tobytes()], want)

    def affine(self, rows: int) -> Asked:
        """y = 2x + 1, in a message and back in one."""
        x = self.numbers.standard_normal((rows, 4)).astype(np.float32)
        return self.in_message("x", x, y=2 * x + 1)

    def affine_at(self, region: int, rows: int, offset: int, to: int) -> Asked:
        """The same in the client's memory, both ways."""
        size = 16 * rows
        x = self.numbers.standard_normal((rows, 4)).astype(np.float32)
        if region == ON_GPU:
            fake_cuda_ipc.write_to_another(self.handle, offset, x.tobytes())
        else:
            self.segment.view[offset : offset + size] = x.tobytes()
        request = request_of(
            m.Tensor("x", "FP32", x.shape, REGION, region, offset, size),
            outputs=(m.OutputRequest("y", REGION, region, to, size),),
        )
        return Asked(request, [], {"y": 2 * x + 1})

    def echo(self, count: int) -> Asked:
        x = self.numbers.standard_normal(count).astype(np.float32)
        return self.in_message("INPUT0", x, OUTPUT0=x)

    def expand(self, rows: int, *, at: int | None = None) -> Asked:
        """x of [1, 3], repeated; the wanted shape in a message, or `at` an offset on the GPU."""
        x = self.numbers.standard_normal((1, 3)).astype(np.float32)
        shape = np.array([rows, 3], np.int64)
        frames = [x.tobytes(), shape.tobytes()]
        told = inline("shape", "INT64", (2,), 16, frame=1)
        if at is not None:
            fake_cuda_ipc.write_to_another(self.handle, at, frames.pop())
            told = m.Tensor("shape", "INT64", (2,), REGION, ON_GPU, at, 16)
        request = request_of(inline("x", "FP32", (1, 3), 12), told)
        return Asked(request, frames, {"y": np.repeat(x, rows, axis=0), "told": shape})

    # --- What is held --------------------------------------------------------------------------

    def held(self) -> dict[str, int]:
        """What this process has of the GPU when nobody keeps an error, and its frames, any more."""
        gc.collect()
        gpu = self.gpu
        regions = fake_cuda_ipc.open_count(self.handle)
        return {
            "memory": len(gpu.memory) - bool(regions),
            "pinned": len(gpu.pinned),
            "registered": len(gpu.registered),
            "regions": regions,
            "events": len(gpu.events),
            "graphs": len(gpu.graphs),
            "streams": len(gpu.streams),
        }

    def is_working(self) -> bool:
        """Whether anything is under way on the device."""
        return any(stream.pending for stream in self.gpu.streams.values())


Step = Callable[[GpuWorker], None]


BEGIN: dict[str, Step] = {"load": GpuWorker.load, "warm-up": GpuWorker.warm_up}
END: dict[str, Step] = {"forget": GpuWorker.forget, "unload": GpuWorker.unload}


@dataclass(frozen=True)
class Story:
    """An engine, its config, and what happens, by name and in order."""

    put: Callable[[Path], Path]
    config: Mapping[str, Any]
    steps: Mapping[str, Step]
    again: Step
    """A batch that must be right whatever went wrong before."""

    def before(self, step: str) -> list[Step]:
        """What must have happened before a step: batches need no others."""
        earlier = list(self.steps)[: list(self.steps).index(step)]
        is_batch = step not in BEGIN and step not in END
        return [self.steps[name] for name in earlier if name in BEGIN or not is_batch]


def _affine(folder: Path) -> Path:
    return put_plan(engines.write_affine(folder / "affine"), engines.AFFINE)


def _graphs(folder: Path) -> Path:
    """Two profiles, and plugins."""
    directory = engines.write_affine(folder / "affine")
    (directory / "libmine.so").write_bytes(b"code")
    profiles = [*engines.AFFINE, {"x": [[1, 4], [1, 4], [2, 4]]}]
    return put_plan(directory, profiles, plugins="libmine.so")


def _growing(folder: Path) -> Path:
    directory = write_echo(folder / "growing", "FP32", ["n"])
    profiles = [{"INPUT0": [[1], [1], [1 << 12]]}]
    return put_plan(directory, profiles, untold={"OUTPUT0": ["n"]})


def _expand(folder: Path) -> Path:
    directory = engines.write_expand(folder / "expand")
    values = {"shape": [[1, 3], [2, 3], [6, 3]]}
    return put_plan(directory, [{}], values=values, host=["told"])


GRAPHS = {"graphs": True, "graph_spec": [{"batch_size": 4, "input": {}}]}
"""The second of the profiles does not admit these."""
STORIES = {
    "affine": Story(
        _affine,
        {"max_batch_size": 8, "parameters": NOT_SPLIT},
        {
            "load": GpuWorker.load,
            "message": lambda w: w.run(w.affine(2), w.affine(1)),
            "shared": lambda w: w.run(w.affine_at(SHARED, 3, 0, 4096)),
            "in place": lambda w: w.run(w.affine_at(ON_GPU, 3, 256, 1024)),
            "on the GPU": lambda w: w.run(
                w.affine_at(ON_GPU, 2, 256, 1028), w.affine_at(ON_GPU, 1, 516, 2048)
            ),
            "behind": lambda w: w.run_behind(
                [w.affine_at(SHARED, 3, 0, 4096)], [w.affine_at(ON_GPU, 3, 256, 1024)]
            ),
            **END,
        },
        lambda w: w.run(w.affine(2), w.affine(2)),
    ),
    "graphs": Story(
        _graphs,
        {
            "max_batch_size": 8,
            "parameters": {**NOT_SPLIT, "plugins": {"string_value": "libmine.so"}},
            "optimization": {"priority": "PRIORITY_MAX", "cuda": GRAPHS},
            "instance_group": [{"name": "affine", "kind": "KIND_GPU", "profile": ["0", "1"]}],
        },
        {
            **BEGIN,
            "graph": lambda w: w.run(w.affine(3), w.affine(1)),
            "shared": lambda w: w.run(w.affine_at(SHARED, 1, 0, 4096)),
            "unload": GpuWorker.unload,
        },
        lambda w: w.run(w.affine(4)),
    ),
    "growing": Story(
        _growing,
        {
            "max_batch_size": 0,
            "parameters": NOT_SPLIT,
            "input": [{"name": "INPUT0", "dims": [-1]}],
        },
        {
            **BEGIN,
            "small": lambda w: w.run(w.echo(5)),
            "larger": lambda w: w.run(w.echo(1000)),
            "two": lambda w: w.run(w.echo(1), w.echo(4000)),
            **END,
        },
        lambda w: w.run(w.echo(3)),
    ),
    "expand": Story(
        _expand,
        {"max_batch_size": 0, "parameters": NOT_SPLIT},
        {
            **BEGIN,
            "message": lambda w: w.run(w.expand(4)),
            "shape on the GPU": lambda w: w.run(w.expand(5, at=64)),
            "behind": lambda w: w.run_behind([w.expand(2)], [w.expand(3, at=128)]),
            **END,
        },
        lambda w: w.run(w.expand(6)),
    ),
}

"""Small pieces for tests of the worker's insides: configs, requests, an arena that says no."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from naiad.config.model import ModelConfig
from naiad.protocol import messages as m
from naiad.protocol.errors import NaiadError
from naiad.shm.page import SlotPage
from naiad.worker.backends.base import Backend, ModelInstance, ModelRequest, ModelResponse
from naiad.worker.batch import Buffer, ReceivedBatch, Regions
from naiad.worker.device_regions import DeviceRegions
from naiad.worker.execution import Execution
from naiad.worker.log import Log
from naiad.worker.regions import RegionTable


def tensor_json(name: str, data_type: str = "TYPE_FP32", *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims or (16,)), **more}


def config_of(
    inputs: Sequence[dict[str, Any]],
    outputs: Sequence[dict[str, Any]],
    *,
    max_batch_size: int = 8,
    **more: Any,
) -> ModelConfig:
    return ModelConfig.from_json(
        {
            "name": "m",
            "backend": "test",
            "max_batch_size": max_batch_size,
            "input": list(inputs),
            "output": list(outputs),
            **more,
        }
    )


def instance_of(config: ModelConfig, directory: str = "/models/m") -> ModelInstance:
    return ModelInstance("m", 1, "m_0", directory, "KIND_CPU", 0, 0, config)


class HeapRegions:
    """Client regions that are plain byte arrays, by id."""

    def __init__(self, **regions: bytearray) -> None:
        self.content = {int(name.removeprefix("r")): region for name, region in regions.items()}
        self.device = DeviceRegions()
        self.device_ids: set[int] = set()

    def readable(self, region: int, offset: int, size: int) -> memoryview:
        return self.writable(region, offset, size).toreadonly()

    def writable(self, region: int, offset: int, size: int) -> memoryview:
        return memoryview(self.content[region])[offset : offset + size]

    def copy(self, region: int, offset: int, size: int) -> memoryview:
        return memoryview(bytes(self.writable(region, offset, size)))


class HeapArena:
    """An output arena without shared memory; `room_bytes` is all it lends."""

    def __init__(self, room_bytes: int = 0) -> None:
        self.room_bytes = room_bytes
        self.lent: dict[tuple[int, int], list[bytes]] = {}

    def lend(self, request: m.BatchRequest, content: Buffer) -> tuple[int, int] | None:
        if len(content) > self.room_bytes:
            return None
        self.room_bytes -= len(content)
        self.lent.setdefault((request.session, request.id), []).append(bytes(content))
        return 77, 0

    def end(self, session: int, request: int) -> bool:
        return self.lent.pop((session, request), None) is not None


class ScriptedBackend:
    """Executes with a function of one request; remembers the size of each execution."""

    def __init__(self, answer: Callable[[ModelRequest], ModelResponse | NaiadError]) -> None:
        self.answer = answer
        self.sizes: list[int] = []

    def load(self, instance: ModelInstance) -> ModelConfig:
        return instance.config

    def warm_up(self) -> None:
        return None

    def execute(self, batch: Sequence[ModelRequest]) -> Sequence[ModelResponse | NaiadError]:
        self.sizes.append(len(batch))
        return [self.answer(request) for request in batch]

    def unload(self) -> None:
        return None


def execution_of(
    backend: ScriptedBackend,
    config: ModelConfig,
    *,
    arena: HeapArena | None = None,
    directory: str = "/models/m",
    gpu_uuid: str = "",
) -> Execution:
    instance = replace(instance_of(config, directory), gpu_uuid=gpu_uuid)
    return execution_with(backend, instance, config, arena)


def execution_with(
    backend: Backend,
    instance: ModelInstance,
    config: ModelConfig,
    arena: HeapArena | None = None,
) -> Execution:
    """Of a backend that was loaded as this instance."""
    return Execution(
        backend,
        instance,
        config,
        page=SlotPage("/unused"),
        log=Log("test"),
        is_cancelled=lambda key: False,
        lender=arena or HeapArena(),
    )


def batch_of(
    requests: Sequence[m.BatchRequest],
    payload: Sequence[bytes] = (),
    regions: Regions | None = None,
) -> ReceivedBatch:
    frames = [memoryview(frame) for frame in payload]
    return ReceivedBatch(5, tuple(requests), frames, RegionTable() if regions is None else regions)


def inline(
    name: str, datatype: str, shape: tuple[int, ...], size: int, offset: int = 0, frame: int = 0
) -> m.Tensor:
    return m.Tensor(name, datatype, shape, m.Place.INLINE, frame, offset, size)


def request_of(*inputs: m.Tensor, ident: int = 1, **fields: Any) -> m.BatchRequest:
    values = {"session": 1, "label": f"r{ident}", "outputs": (), **fields}
    return m.BatchRequest(id=ident, inputs=inputs, **values)

"""A server with two GPUs on a bench, and a client with memory on both."""

from __future__ import annotations

from math import prod
from typing import Any

from naiad.broker.core import events as e
from naiad.broker.core.job import ANYWHERE
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.shm.cuda.key import cuda_region
from support.simulated_bench import CLIENT, Bench, Json, config

A, B = "gpu:GPU-a", "gpu:GPU-b"
DEVICES = (A, B)
ON_BOTH: list[Json] = [{"name": "m_0", "kind": "KIND_GPU", "gpus": [0, 1], "count": 1}]


def model(groups: list[Json] = ON_BOTH, **fields: Any) -> Json:
    return config("m", instance_group=groups, **fields)


class TwoGpus(Bench):
    """A server with two GPUs, and a client with a region of memory on each."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(gpus=DEVICES, limits=Limits(**limits))
        self.client()
        self.regions = [self.region(device) for device in range(len(DEVICES))]
        self.needs: dict[int, int] = {}
        """By request: the GPU with its memory."""

    def region(self, device: int) -> int:
        number = self.world.number()
        made = cuda_region(bytes(64), 4096, device, f"on-{device}", region_id=number)
        self.do(e.RegionOffered(CLIENT, number, made, None))
        return number

    def serve(self, found: Json, *devices: str) -> list[int]:
        """Load the model with a worker on each of these devices; the slots."""
        self.load(found)
        slots = [self.worker(device) for device in devices]
        for slot in slots:
            self.loaded(slot)
        return slots

    def tensor(self, gpu: int, shape: tuple[int, ...] = (4,)) -> m.Tensor:
        size = prod(shape)
        if gpu == ANYWHERE:
            return m.Tensor("X", "UINT8", shape, int(m.Place.INLINE), 0, 0, size)
        return m.Tensor("X", "UINT8", shape, int(m.Place.REGION), self.regions[gpu], 0, size)

    def ask_on(self, gpu: int, *idents: int, rows: int = 0, width: int = 4, **fields: Any) -> None:
        shape = (rows, width) if rows else (width,)
        for ident in idents:
            self.needs[ident] = gpu
            request = self.request(ident, inputs=(self.tensor(gpu, shape),), **fields)
            self.do(e.RequestsArrived(CLIENT, (request,), [bytes(prod(shape))]))

    def together(self, gpu: int, *idents: int) -> None:
        """These arrive in one message."""
        tensor = self.tensor(gpu)
        requests = tuple(self.request(ident, inputs=(tensor,)) for ident in idents)
        self.do(e.RequestsArrived(CLIENT, requests, [bytes(4)]))

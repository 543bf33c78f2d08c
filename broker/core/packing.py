"""What one batch message holds: which requests fit, where their bytes lie, what regions are new.

Functions of jobs that were chosen already; they decide nothing about queues or workers.
"""

from __future__ import annotations

from typing import Final

from naiad.broker.core.answers import SMALL_BYTES_MAX
from naiad.broker.core.events import Frames
from naiad.broker.core.instances import Slot
from naiad.broker.core.job import Job
from naiad.broker.core.models import ModelVersion
from naiad.protocol.messages import (
    WORKER_HEADER_BYTES_MAX,
    BatchRequest,
    OutputRequest,
    Place,
    Region,
    Tensor,
)

_INLINE = int(Place.INLINE)
_REGION = int(Place.REGION)
_make = tuple.__new__

WASTE_FACTOR: Final = 4
"""Frames shared with other requests are forwarded whole while no larger than this times the part
that the batch needs."""
BATCH_HEADER_BYTES_MAX: Final = WORKER_HEADER_BYTES_MAX * 3 // 4
"""For the requests of a batch; the rest is for regions that are new to its worker."""


def fitting(jobs: list[Job], model: ModelVersion) -> list[Job]:
    """As many of the jobs as one message to a worker can name; the others wait for the next."""
    signature = model.signature
    assert signature is not None
    each = signature.header_bytes
    left = BATCH_HEADER_BYTES_MAX
    for index, job in enumerate(jobs):
        left -= each + job.text_bytes
        if left < 0 and index:
            return jobs[:index]
    return jobs


def pack(
    slot: Slot, jobs: list[Job], now_ns: int, known: dict[int, Region]
) -> tuple[tuple[BatchRequest, ...], tuple[Region, ...], Frames]:
    """A batch's requests with their inline bytes in its own frames.

    When all requests came in one client message its frames are forwarded as they are. `known`
    are all regions by id; those new to the worker are named as well, and noted in its slot.
    """
    shared = jobs[0].frames
    used = 0
    as_they_are = True
    for job in jobs:
        if job.frames is not shared:
            as_they_are = False
            break
        used += job.inline_bytes
    if as_they_are and sum(map(len, shared)) > WASTE_FACTOR * used:
        as_they_are = False
    frames: Frames = []
    small: Frames = []
    small_bytes = 0
    regions: list[Region] = []
    requests = []
    signature = jobs[0].model.signature
    assert signature is not None
    for job in jobs:
        (ident, _, _, _, label, inputs, outputs, priority, _, sequence, _, _, trace,
         parameters) = job.request  # fmt: skip
        if job.regional:
            _add_new_regions(regions, slot, known, inputs, outputs)
        elif outputs:
            outputs = signature.shortest(outputs)
        if not as_they_are:
            source = job.frames
            packed = []
            for tensor in inputs:
                name, datatype, shape, place, index, offset, size = tensor
                if place == _INLINE:
                    frame = source[index]
                    if size != len(frame):
                        frame = frame[offset : offset + size]
                    if size <= SMALL_BYTES_MAX:
                        small.append(frame)
                        where, at = 0, small_bytes
                        small_bytes += size
                    else:
                        frames.append(frame)
                        where, at = len(frames), 0
                    tensor = _make(Tensor, (name, datatype, shape, _INLINE, where, at, size))
                packed.append(tensor)
            inputs = tuple(packed)
        left_us = max(1, (job.deadline_ns - now_ns) // 1000) if job.deadline_ns else 0
        requests.append(
            _make(
                BatchRequest,
                (
                    job.session.key, ident, label, inputs, outputs, left_us, priority, sequence,
                    trace, parameters,
                ),
            )
        )  # fmt: skip
    if as_they_are:
        return tuple(requests), tuple(regions), shared
    return tuple(requests), tuple(regions), [b"".join(small), *frames]


def _add_new_regions(
    regions: list[Region],
    slot: Slot,
    known: dict[int, Region],
    inputs: tuple[Tensor, ...],
    outputs: tuple[OutputRequest, ...],
) -> None:
    for tensor in inputs:
        if tensor[3] == _REGION and tensor[4] not in slot.regions:
            slot.regions.add(tensor[4])
            regions.append(known[tensor[4]])
    for output in outputs:
        if output[1] == _REGION and output[2] not in slot.regions:
            slot.regions.add(output[2])
            regions.append(known[output[2]])

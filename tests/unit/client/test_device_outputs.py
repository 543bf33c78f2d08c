"""Outputs in GPU memory among the others of an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from naiad.client.results import Copied, InferResult
from naiad.protocol.errors import RequestError, Unavailable
from naiad.protocol.messages import InferAnswer, Place, Region, Tensor
from naiad.shm.cuda.arrays import DeviceArray
from naiad.shm.session_memory import OWN_REGIONS_MAX, SessionMemory

INLINE = Tensor("small", "FP32", (2,), Place.INLINE, 0, 0, 8)


class OnGpu:
    """What a client's region of GPU memory is to its session: arrays at an address."""

    def array(self, datatype: str, shape: tuple[int, ...], offset: int) -> Any:
        return DeviceArray(4096 + offset, 0, datatype, shape, self)


def answered(*, is_copied: bool) -> InferResult:
    memory = SessionMemory()
    region = memory.own_device(Region(0, "cuda:", 0, 0, 256), OnGpu())
    large = Tensor("large", "FP32", (4, 4), Place.REGION, region.id, 64, 64)
    answer = InferAnswer(1, None, 1, (INLINE, large))
    placed: Any = memory.outputs(1, answer.outputs, ())
    if is_copied:
        placed = Copied(placed, answer.outputs)
    return InferResult(answer, [np.array([1, 2], np.float32).tobytes()], placed)


@pytest.mark.parametrize("is_copied", [False, True])
def test_they_are_arrays_there_and_have_no_bytes_here(is_copied: bool) -> None:
    result = answered(is_copied=is_copied)
    found: Any = result["large"]
    assert isinstance(found, DeviceArray)
    assert (found.address, found.datatype, found.shape) == (4096 + 64, "FP32", (4, 4))
    assert result["small"].tolist() == [1, 2]
    with pytest.raises(RequestError, match="output 'large' lies in GPU memory"):
        _ = result.outputs
    assert [row[3] is None for row in result.raw({"large"})] == [False, True]


def test_a_region_that_was_forgotten_is_nobodys() -> None:
    memory = SessionMemory()
    region = memory.own_device(Region(0, "cuda:", 0, 0, 256), OnGpu())
    memory.forget(region.id)
    large = Tensor("large", "FP32", (4, 4), Place.REGION, region.id, 64, 64)
    placed = memory.outputs(1, (large,), ())
    assert placed is not None
    assert not placed.is_on_device(large)
    with pytest.raises(RequestError, match="this client has not mapped"):
        placed.array(large)


def test_there_are_not_more_than_a_session_may_have() -> None:
    memory = SessionMemory()
    for _ in range(OWN_REGIONS_MAX):
        memory.own_device(Region(0, "cuda:", 0, 0, 256), OnGpu())
    with pytest.raises(Unavailable, match="forget some"):
        memory.own_device(Region(0, "cuda:", 0, 0, 256), OnGpu())
    memory.close()
    memory.own_device(Region(0, "cuda:", 0, 0, 256), OnGpu())

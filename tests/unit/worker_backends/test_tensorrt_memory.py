"""What is allocated, how much of it, and that it is given back: memory.py and cuda.py alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from naiad.protocol.errors import ModelError
from naiad.worker.backends.base import InstanceLost
from naiad.worker.backends.tensorrt.cuda import Cuda
from naiad.worker.backends.tensorrt.memory import (
    BUFFER_BYTES_MIN,
    BufferSet,
    DeviceBuffers,
    PinnedBlocks,
    ResultMemory,
    output_allocator,
)
from naiad.worker.backends.tensorrt.streams import Streams
from support import engines, fake_cudart, fake_trt
from support.engines import load, put_plan, random


@pytest.fixture
def cuda(gpu: fake_cudart.Device) -> Cuda:
    return Cuda(fake_cudart, "affine", 0, "GPU-a")


def sizes(gpu: fake_cudart.Device) -> list[int]:
    return sorted(size for size, _ in gpu.memory.values())


# --- Device buffers ----------------------------------------------------------------------------


def test_a_buffer_that_grows_is_one_buffer(cuda: Cuda, gpu: fake_cudart.Device) -> None:
    buffers = DeviceBuffers(cuda)
    assert buffers.room("y", 1000) != buffers.room("x", 10)
    assert sizes(gpu) == [BUFFER_BYTES_MIN, 1000]
    grown = buffers.room("y", 5000)
    assert sizes(gpu) == [BUFFER_BYTES_MIN, 5000]
    assert {buffers.room("y", size) for size in (5000, 1, 0)} == {grown}
    assert gpu.calls["cudaMalloc"] == 3
    buffers.close()
    assert sizes(gpu) == []


def test_a_buffer_has_the_greatest_size_that_was_reserved(
    cuda: Cuda, gpu: fake_cudart.Device
) -> None:
    """Profiles reserve one after the other, in any order."""
    buffers = DeviceBuffers(cuda)
    for size in (3000, 7000, 2000):
        buffers.reserve("x", size)
    buffers.reserve("empty", 0)
    assert sizes(gpu) == []
    buffers.allocate()
    assert sizes(gpu) == [BUFFER_BYTES_MIN, 7000]
    buffers.room("x", 7000)
    buffers.room("empty", BUFFER_BYTES_MIN)
    assert gpu.calls["cudaMalloc"] == 2


def test_what_cannot_be_freed_is_kept_and_what_cannot_grow_begins_anew(
    cuda: Cuda, gpu: fake_cudart.Device
) -> None:
    buffers = DeviceBuffers(cuda)
    first = buffers.room("y", 1000)
    gpu.fail("cudaFree", 801)
    with pytest.raises(ModelError, match="cudaFree: CUDA error 801"):
        buffers.room("y", 2000)
    assert buffers.room("y", 1000) == first
    gpu.fail("cudaMalloc", 2)
    with pytest.raises(ModelError, match="the buffer of tensor 'y' needs 2000 bytes"):
        buffers.room("y", 2000)
    assert sizes(gpu) == []
    buffers.room("y", 1500)
    assert sizes(gpu) == [1500]


def test_batches_of_every_profile_find_their_buffers(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    """Nothing is allocated on the way of a batch, in whichever order the profiles are listed."""
    directory = engines.write_affine(tmp_path / "affine")
    large, small = {"x": [[1, 4], [2, 4], [64, 4]]}, {"x": [[1, 4], [1, 4], [1, 4]]}
    for number, profiles in enumerate([[large, small], [small, large]]):
        group = {"name": "affine", "kind": "KIND_GPU", "profile": ["0", "1"]}
        config = {"max_batch_size": 64, "instance_group": [group]}
        served = load(put_plan(directory, profiles), config)
        before = gpu.calls["cudaMalloc"], gpu.calls["cudaHostAlloc"]
        for rows in (64, 1, 64):
            x = random(rows, 4, seed=number)
            np.testing.assert_array_equal(served.ask({"x": x})["y"], 2 * x + 1)
        assert before == (gpu.calls["cudaMalloc"], gpu.calls["cudaHostAlloc"])
        served.backend.unload()
        assert (sizes(gpu), gpu.pinned, gpu.streams) == ([], {}, {})


def test_an_allocator_is_asked_for_the_power_of_two_above() -> None:
    asked: list[tuple[str, int]] = []

    def room(name: str, size: int) -> int:
        asked.append((name, size))
        return 4096

    allocator = output_allocator(fake_trt, room)
    for size in (0, 256, 257, 100_000):
        assert allocator.reallocate_output("y", 0, size, 256) == 4096
        assert allocator.reallocate_output_async("y", 0, size, 256, 7) == 4096
    assert asked == [("y", size) for size in (256, 256, 256, 256, 512, 512, 131072, 131072)]
    assert allocator.fault is None


@pytest.mark.parametrize("fault", [ModelError("none left"), InstanceLost("gone")])
def test_an_allocator_raises_nothing_and_keeps_why(fault: BaseException) -> None:
    def room(name: str, size: int) -> int:
        raise fault

    allocator = output_allocator(fake_trt, room)
    assert allocator.reallocate_output_async("y", 4096, 8, 256, 7) == 0
    assert allocator.fault is fault


# --- Pinned memory -----------------------------------------------------------------------------


def test_pinned_memory_is_bounded_by_the_sum(cuda: Cuda, gpu: fake_cudart.Device) -> None:
    blocks = PinnedBlocks(cuda, 1000)
    for name, size in [("a", 600), ("b", 500), ("c", 400), ("d", 1)]:
        blocks.add(name, size)
    assert [blocks.view(name, 1) is not None for name in "abcd"] == [True, False, True, False]
    assert sorted(size for size, _ in gpu.pinned.values()) == [400, 600]
    assert blocks.view("a", 601) is None
    assert blocks.view("other", 0) is None
    blocks.close()
    assert not gpu.pinned
    assert blocks.view("a", 1) is None


def test_what_could_not_be_pinned_takes_no_room(cuda: Cuda, gpu: fake_cudart.Device) -> None:
    blocks = PinnedBlocks(cuda, 1000)
    gpu.fail("cudaHostAlloc", 2)
    blocks.add("a", 600)
    assert blocks.view("a", 1) is None
    assert gpu.last == 0, "TensorRT must not be blamed for it"
    blocks.add("b", 1000)
    assert blocks.view("b", 1000) is not None


def test_a_block_of_results_is_lent_to_one_batch_at_a_time(cuda: Cuda) -> None:
    results = ResultMemory(cuda)
    results.pin("y", 100)
    first, is_pinned = results.take("y", 100)
    assert (first.nbytes, is_pinned) == (100, True)
    part = first[10:20]
    for size in (100, 1):
        other, is_pinned = results.take("y", size)
        assert (other.nbytes, is_pinned) == (size, False)
    del first
    assert results.take("y", 1)[1] is False, "a part of it still lives"
    del part
    assert results.take("y", 1)[1] is True
    assert results.take("y", 101)[1] is False
    assert results.take("z", 1)[1] is False


def test_a_set_stages_inputs_and_gives_all_back(cuda: Cuda, gpu: fake_cudart.Device) -> None:
    streams = Streams(cuda)
    before = len(gpu.events)
    one = BufferSet(streams)
    for size in (50, 500, 5):
        one.reserve_input("x", size)
    one.reserve_output("y", 700)
    one.allocate()
    assert sizes(gpu) == [500, 700]
    assert [size for size, _ in gpu.pinned.values()] == [500]
    one.close()
    assert (sizes(gpu), gpu.pinned, len(gpu.events)) == ([], {}, before)
    streams.close()


# --- What may still be taken -------------------------------------------------------------------


def test_growth_counts_what_is_taken_and_what_is_given_back(
    cuda: Cuda, gpu: fake_cudart.Device
) -> None:
    before = cuda.allocate(300, "an engine")
    cuda.growth_left = 1000
    first = cuda.allocate(600, "first")
    assert cuda.growth_left == 400
    with pytest.raises(ModelError) as caught:
        cuda.allocate(401, "second")
    assert caught.value.message == (
        "model 'affine': out of GPU memory: second needs 401 bytes, naiad.gpu_memory_limit_mb "
        "leaves 400 on GPU 0 (GPU-a); send smaller requests, or raise the limit"
    )
    cuda.allocate(400, "second")
    cuda.free(first)
    assert cuda.growth_left == 600
    cuda.free(before)
    assert cuda.growth_left == 900
    gpu.fail("cudaMalloc", 2)
    with pytest.raises(ModelError):
        cuda.allocate(900, "third")
    gpu.fail("cudaMalloc", 1)
    with pytest.raises(ModelError):
        cuda.allocate(900, "third")
    assert cuda.growth_left == 900, "what was not had is not taken"
    cuda.allocate(900, "third")


def test_without_a_limit_nothing_is_counted(cuda: Cuda) -> None:
    cuda.free(cuda.allocate(600, "first"))
    assert cuda.growth_left is None


FAILS: dict[str, Callable[[Cuda], object]] = {
    "cudaMalloc": lambda cuda: cuda.allocate(10, "it"),
    "cudaFree": lambda cuda: cuda.free(cuda.allocate(10, "it")),
    "cudaHostRegister": lambda cuda: cuda.register(4096, 4096, is_read_only=False),
    "cudaHostUnregister": lambda cuda: cuda.unregister(4096),
    "cudaMemGetInfo": lambda cuda: cuda.out_of_memory(10, "it"),
}


@pytest.mark.parametrize("function", FAILS)
def test_an_error_that_stays_ends_the_worker_there(
    cuda: Cuda, gpu: fake_cudart.Device, function: str
) -> None:
    gpu.fail(function, 719)
    if function == "cudaHostUnregister":  # it is called where memory goes, and raises nothing
        assert "CUDA error 719" in str(FAILS[function](cuda))
        function = "cudaMemGetInfo"
    with pytest.raises(InstanceLost, match=r"on GPU 0 .*CUDA error 719"):
        FAILS[function](cuda)


@pytest.mark.parametrize("code", [2, 801])
@pytest.mark.parametrize("function", FAILS)
def test_no_later_call_is_blamed_for_an_error_that_was_told(
    cuda: Cuda, gpu: fake_cudart.Device, function: str, code: int
) -> None:
    gpu.fail(function, code)
    try:
        told = str(FAILS[function](cuda))
    except ModelError as error:
        told = error.message
    assert f"CUDA error {code}" in told or (function, code) == ("cudaMalloc", 2)
    assert gpu.calls[function] == 1
    assert gpu.last == 0

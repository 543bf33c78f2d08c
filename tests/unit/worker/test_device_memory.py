"""Tensors in clients' GPU memory, over the fake CUDA: opened once, copied where that is needed,
closed when nothing uses them, and every error told by the region's name."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from naiad.protocol import messages as m
from naiad.protocol.errors import Code, ModelError, ProtocolError, RequestError
from naiad.shm.cuda.key import cuda_region
from naiad.shm.cuda.runtime import CudaMissing, cuda_runtime
from naiad.worker import device_regions
from naiad.worker.backends.base import (
    DeviceSpan,
    InstanceLost,
    ModelRequest,
    ModelResponse,
    OutputTensor,
)
from naiad.worker.device_regions import DeviceRegions
from naiad.worker.execution import ExecutedBatch
from naiad.worker.regions import RegionTable
from support import fake_cuda_driver, fake_cuda_ipc, fake_cudart
from support.worker_parts import (
    ScriptedBackend,
    batch_of,
    config_of,
    execution_of,
    inline,
    request_of,
    tensor_json,
)

VALUES = np.arange(16, dtype=np.float32)
CONFIG = config_of([tensor_json("IN", "TYPE_FP32", -1)], [tensor_json("OUT", "TYPE_FP32", -1)])


@pytest.fixture
def gpu() -> Iterator[fake_cudart.Device]:
    device = fake_cuda_ipc.reset()
    yield device
    device.close()


@pytest.fixture
def handle(gpu: fake_cudart.Device) -> bytes:
    """256 bytes that another process exported, VALUES at their beginning."""
    return fake_cuda_ipc.device_of_another(VALUES.tobytes().ljust(256, b"\xee"))


@pytest.fixture
def table(handle: bytes) -> RegionTable:
    """The region 1, called "theirs"."""
    table = RegionTable(DeviceRegions(fake_cuda_ipc.loaded))
    table.define([cuda_region(handle, 256, 0, "theirs", region_id=1)])
    return table


def given(items: int = 4, offset: int = 0, **more: Any) -> m.BatchRequest:
    place = m.Place.REGION
    return request_of(m.Tensor("IN", "FP32", (1, items), place, 1, offset, 4 * items), **more)


def wanted(offset: int, size: int) -> tuple[m.OutputRequest, ...]:
    return (m.OutputRequest("OUT", m.Place.REGION, 1, offset, size),)


def doubled(request: ModelRequest) -> ModelResponse:
    tensor = request.inputs["IN"]
    return ModelResponse([OutputTensor("OUT", "FP32", tensor.shape, 2 * tensor.array())])


class DeviceBackend(ScriptedBackend):
    takes_device_memory = True


def run(
    backend: ScriptedBackend, table: RegionTable, *requests: m.BatchRequest, config: Any = CONFIG
) -> ExecutedBatch:
    frames: Sequence[bytes] = [VALUES.tobytes()]
    return execution_of(backend, config).run(batch_of(requests, frames, table), set())


def error_of(done: ExecutedBatch) -> tuple[str, str, bool]:
    error = done.results[0].error
    assert error is not None
    return error


def first(done: ExecutedBatch) -> Any:
    assert done.results[0].error is None, done.results[0].error
    return np.frombuffer(done.frames[0], np.float32)


def theirs(handle: bytes, offset: int = 0, items: int = 4) -> list[float]:
    content = fake_cuda_ipc.content_of_another(handle)[offset : offset + 4 * items]
    return list(struct.unpack(f"{items}f", content))


# --- backends that know nothing of it ----------------------------------------------------------


def test_a_backend_that_takes_no_device_memory_gets_a_copy(table: RegionTable) -> None:
    def answer(request: ModelRequest) -> ModelResponse:
        assert request.device is None
        return doubled(request)

    done = run(ScriptedBackend(answer), table, given(offset=16))
    assert first(done).tolist() == [8, 10, 12, 14]


def test_its_output_is_written_to_gpu_memory_and_nowhere_else(
    table: RegionTable, handle: bytes
) -> None:
    request = given(outputs=wanted(128, 20))
    done = run(ScriptedBackend(doubled), table, request)
    assert done.results[0].error is None
    place = m.Place.REGION
    assert done.results[0].outputs == (m.Tensor("OUT", "FP32", (1, 4), place, 1, 128, 16),)
    content = fake_cuda_ipc.content_of_another(handle)
    assert theirs(handle, 128) == [0, 2, 4, 6]
    assert content == VALUES.tobytes() + b"\xee" * 64 + content[128:144] + b"\xee" * 112


def test_an_output_too_large_for_its_place_fails_with_tritons_text(
    table: RegionTable, handle: bytes
) -> None:
    done = run(ScriptedBackend(doubled), table, given(outputs=wanted(128, 15)))
    assert "output 'OUT' (15 bytes) should be at least 16 bytes" in error_of(done)[1]
    assert fake_cuda_ipc.content_of_another(handle)[64:] == b"\xee" * 192


def test_strings_are_parsed_from_a_copy(gpu: fake_cudart.Device) -> None:
    config = config_of(
        [tensor_json("IN", "TYPE_STRING", 1)], [tensor_json("OUT", "TYPE_STRING", 1)]
    )
    handle = fake_cuda_ipc.device_of_another(b"\x03\0\0\0abc" + b"\xff\0\0\0xyz")
    table = RegionTable(DeviceRegions(fake_cuda_ipc.loaded))
    table.define([cuda_region(handle, 14, 0, "texts", region_id=1)])

    def echo(request: ModelRequest) -> ModelResponse:
        assert request.inputs["IN"].array().tolist() == [[b"abc"]]
        return ModelResponse([OutputTensor("OUT", "BYTES", (1, 1), None, b"\x01\0\0\0!")])

    def strings(offset: int) -> m.BatchRequest:
        return request_of(m.Tensor("IN", "BYTES", (1, 1), m.Place.REGION, 1, offset, 7))

    for backend in (ScriptedBackend(echo), DeviceBackend(echo)):
        good, bad = run(backend, table, strings(0), strings(7), config=config).results
        assert good.error is None
        assert bad.error is not None
        assert "only 3 are left" in bad.error[1]


# --- backends that take it ---------------------------------------------------------------------


def test_a_backend_that_takes_it_is_told_where_and_nothing_is_copied(
    table: RegionTable, gpu: fake_cudart.Device
) -> None:
    seen: list[DeviceSpan] = []

    def in_place(request: ModelRequest) -> ModelResponse:
        assert request.device is not None
        source, place = request.device.inputs["IN"], request.device.places["OUT"]
        seen.extend((source, place))
        return ModelResponse([OutputTensor("OUT", "FP32", (1, 4), span=place._replace(size=16))])

    done = run(DeviceBackend(in_place), table, given(offset=16, outputs=wanted(128, 64)))
    assert done.results[0].error is None
    source, place = seen
    assert (source.size, place.size) == (16, 64)
    assert place.address - source.address == 112
    assert gpu.calls["cudaMemcpy"] == 0
    assert gpu.calls["cudaIpcOpenMemHandle"] == 1


def test_it_may_ask_for_a_copy_all_the_same(table: RegionTable) -> None:
    done = run(DeviceBackend(doubled), table, given())
    assert first(done).tolist() == [0, 2, 4, 6]


def test_requests_in_ordinary_memory_have_no_device_memory(table: RegionTable) -> None:
    def answer(request: ModelRequest) -> ModelResponse:
        assert (request.device is not None) is (request.label == "r2")
        return doubled(request)

    ordinary = request_of(inline("IN", "FP32", (1, 4), 16), ident=1)
    done = run(DeviceBackend(answer), table, ordinary, given(ident=2))
    assert [result.error for result in done.results] == [None, None]


@pytest.mark.parametrize("to_device", [True, False])
def test_what_it_leaves_elsewhere_on_the_gpu_is_brought_where_it_belongs(
    table: RegionTable, handle: bytes, to_device: bool
) -> None:
    def elsewhere(request: ModelRequest) -> ModelResponse:
        assert request.device is not None
        return ModelResponse(
            [OutputTensor("OUT", "FP32", (1, 4), span=request.device.inputs["IN"])]
        )

    outputs = wanted(128, 64) if to_device else ()
    done = run(DeviceBackend(elsewhere), table, given(offset=16, outputs=outputs))
    if to_device:
        assert done.results[0].error is None
        assert theirs(handle, 128) == [4, 5, 6, 7]
    else:
        assert first(done).tolist() == [4, 5, 6, 7]


def test_the_size_of_what_it_leaves_is_checked(table: RegionTable) -> None:
    def short(request: ModelRequest) -> ModelResponse:
        assert request.device is not None
        span = request.device.inputs["IN"]._replace(size=12)
        return ModelResponse([OutputTensor("OUT", "FP32", (1, 4), span=span)])

    done = run(DeviceBackend(short), table, given(outputs=wanted(128, 64)))
    assert error_of(done)[0] == Code.MODEL_OUTPUT_INVALID


# --- the life of a mapping ---------------------------------------------------------------------


def test_a_region_is_opened_once_and_closed_when_it_is_forgotten(
    table: RegionTable, handle: bytes, gpu: fake_cudart.Device
) -> None:
    assert fake_cuda_ipc.open_count(handle) == 0  # before anybody asks
    for _ in range(3):
        assert first(run(ScriptedBackend(doubled), table, given())).tolist() == [0, 2, 4, 6]
    assert gpu.calls["cudaIpcOpenMemHandle"] == 1
    assert table.forget([1]) == (1,)
    assert not table.is_leaving
    assert fake_cuda_ipc.open_count(handle) == 0
    assert error_of(run(ScriptedBackend(doubled), table, given()))[0] == Code.NOT_FOUND


def test_a_region_that_a_batch_uses_is_closed_after_it(table: RegionTable, handle: bytes) -> None:
    def forgotten_meanwhile(request: ModelRequest) -> ModelResponse:
        assert table.forget([1]) == ()
        assert table.is_leaving
        assert fake_cuda_ipc.open_count(handle) == 1
        return doubled(request)

    done = run(DeviceBackend(forgotten_meanwhile), table, given())
    assert first(done).tolist() == [0, 2, 4, 6]
    assert table.sweep() == (1,)
    assert fake_cuda_ipc.open_count(handle) == 0


def test_a_region_is_opened_on_its_gpu_and_on_the_only_one_that_is_seen(
    table: RegionTable, handle: bytes, gpu: fake_cudart.Device
) -> None:
    table.define([cuda_region(handle, 256, 1, "second", region_id=2)])
    assert table.device.span(2, 0, 4).device == 0
    assert gpu.calls["cudaSetDevice"] == 0
    gpu.count = 2
    both = DeviceRegions(fake_cuda_ipc.loaded)
    both.define(cuda_region(handle, 256, 1, "second", region_id=2))
    assert both.span(2, 0, 4).device == 1
    assert int(fake_cuda_ipc.cudaGetDevice()[1]) == 0, "the backend's own stays current"


def test_memory_whose_size_cuda_does_not_tell_is_not_used(
    table: RegionTable, handle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(dptr: int) -> tuple[object, ...]:
        return fake_cudart.cudaError_t.cudaErrorInvalidValue, None, None

    monkeypatch.setattr(fake_cuda_driver, "cuMemGetAddressRange", fails)
    with pytest.raises(RequestError, match=r"'theirs' cannot be opened: CUDA driver error 1 "):
        table.device.span(1, 0, 4)
    assert fake_cuda_ipc.open_count(handle) == 0


def test_copies_are_made_on_the_gpu_of_the_memory(handle: bytes, gpu: fake_cudart.Device) -> None:
    """For a worker of the CPU, whose models may make another one current."""
    gpu.count = 2
    both = DeviceRegions(fake_cuda_ipc.loaded)
    both.define(cuda_region(handle, 256, 1, "second", region_id=2))
    span = both.span(2, 0, 8)
    on: list[int] = []
    original = fake_cuda_ipc.cudaMemcpy

    def copy(*arguments: Any) -> Any:
        on.append(int(fake_cuda_ipc.cudaGetDevice()[1]))
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fake_cuda_ipc, "cudaMemcpy", copy)
        both.write(span, bytes(8))
        both.move(span, span)
        assert bytes(both.host_copy(span)) == bytes(8)
    assert on == [1, 1, 1]
    assert int(fake_cuda_ipc.cudaGetDevice()[1]) == 0


def test_two_regions_of_one_handle_are_closed_apart(table: RegionTable, handle: bytes) -> None:
    table.define([cuda_region(handle, 64, 0, "again", region_id=2)])
    first_span, second = table.device.span(1, 0, 4), table.device.span(2, 0, 4)
    assert first_span.address == second.address
    assert fake_cuda_ipc.open_count(handle) == 2
    del first_span
    table.forget([1])
    assert fake_cuda_ipc.open_count(handle) == 1
    del second
    assert bytes(table.device.host_copy(table.device.span(2, 0, 4))) == VALUES.tobytes()[:4]


def test_a_table_that_is_replaced_closes_all(handle: bytes) -> None:
    """As when there is a new broker."""
    table = RegionTable(DeviceRegions(fake_cuda_ipc.loaded))
    table.define([cuda_region(handle, 256, 0, "theirs", region_id=1)])
    table.device.span(1, 0, 4)
    assert fake_cuda_ipc.open_count(handle) == 1
    table = RegionTable()
    assert fake_cuda_ipc.open_count(handle) == 0


def test_what_is_forgotten_is_defined_no_more(
    table: RegionTable, handle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_regions, "DEFINITIONS_MAX", 1)
    second = cuda_region(handle, 256, 0, "second", region_id=2)
    with pytest.raises(ProtocolError, match="more than 1 regions of GPU memory"):
        table.define([second])
    table.forget([1])
    with pytest.raises(RequestError, match="Unable to find shared memory region: '1'"):
        table.device.span(1, 0, 4)
    table.define([second])
    table.device.span(2, 0, 4)


def test_a_number_means_one_region_only(table: RegionTable, handle: bytes) -> None:
    table.define([cuda_region(handle, 256, 0, "theirs", region_id=1)])
    with pytest.raises(ProtocolError, match="a new region needs a new id"):
        table.define([cuda_region(handle, 255, 0, "theirs", region_id=1)])


# --- events ------------------------------------------------------------------------------------


def test_the_owners_event_is_waited_for_before_bytes_are_touched(
    handle: bytes, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = fake_cuda_ipc.loaded()
    owners = cuda.new_event(0)
    event = DeviceSpan(0, 0, 0, owners).event
    regions = DeviceRegions(lambda: cuda)
    regions.define(cuda_region(handle, 256, 0, "theirs", region_id=1))
    span = regions.span(1, 0, 16)._replace(event=event)
    looks = 0

    def pause(seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert gpu.calls["cudaMemcpy"] == copied
        if looks == 3:
            event.set_counts(1, 1)

    monkeypatch.setattr(device_regions, "sleep", pause)
    for touch in (
        lambda: regions.host_copy(span),
        lambda: regions.write(span, bytes(16)),
        lambda: regions.move(span, span),
    ):
        event.set_counts(1, 0)
        looks, copied = 0, gpu.calls["cudaMemcpy"]
        regions.begin()
        touch()
        assert (looks, gpu.calls["cudaMemcpy"]) == (3, copied + 1)
        touch()
        assert looks == 3, "nobody waits for what is done"
    cuda.end_event(owners)


def test_an_owners_event_that_does_not_come_is_waited_for_once(
    handle: bytes, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all the requests of a batch together, and not again before it comes."""
    now, waited = 100.0, 0.0

    def pause(seconds: float) -> None:
        nonlocal now, waited
        now, waited = now + 1.5, waited + 1.5

    monkeypatch.setattr(device_regions, "sleep", pause)
    monkeypatch.setattr(device_regions, "monotonic", lambda: now)
    event = fake_cuda_ipc.event_of_another()
    regions = DeviceRegions(fake_cuda_ipc.loaded)
    others = fake_cuda_ipc.device_of_another(bytes(256))
    for ident, (memory, name) in enumerate([(handle, "theirs"), (others, "more")], 1):
        regions.define(cuda_region(memory, 256, 0, name, event=event, region_id=ident))
    first, second = regions.span(1, 0, 16), regions.span(2, 0, 16)
    first.event.set_counts(1, 0)
    regions.begin()
    for span, name in ((first, "theirs"), (second, "more"), (first, "theirs")):
        with pytest.raises(RequestError, match=f"'{name}': its event was not reached within 5 s"):
            regions.wait_for(span)
        assert waited == 6.0
    regions.begin()
    with pytest.raises(RequestError):
        regions.host_copy(first)
    assert waited == 6.0
    assert gpu.calls["cudaMemcpy"] == 0
    first.event.set_counts(1, 1)
    regions.host_copy(first)
    first.event.set_counts(2, 1)
    with pytest.raises(RequestError):
        regions.wait_for(first)
    assert waited == 12.0, "it came, and is waited for again"


def test_the_event_of_a_region_is_opened_with_it_and_ended_with_it(
    handle: bytes, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = fake_cuda_ipc.loaded()
    ended: list[object] = []
    event = object()
    monkeypatch.setattr(cuda, "open_event", lambda *_: event)
    monkeypatch.setattr(cuda, "end_event", ended.append)
    regions = DeviceRegions(lambda: cuda)
    regions.define(cuda_region(handle, 256, 0, "theirs", event=bytes(64), region_id=1))
    span = regions.span(1, 0, 4)
    assert regions.span(1, 8, 4).event is event
    regions.forget([1])
    assert not ended, "a span of it is in use"
    del span
    assert ended == [event]
    assert fake_cuda_ipc.open_count(handle) == 0


# --- what goes wrong ---------------------------------------------------------------------------


def test_a_handle_of_a_process_that_is_gone_is_told_by_the_regions_name(
    table: RegionTable, handle: bytes, gpu: fake_cudart.Device
) -> None:
    fake_cuda_ipc.forget_another(handle)
    code, text, _ = error_of(run(ScriptedBackend(doubled), table, given()))
    assert code == Code.INVALID_ARGUMENT
    what = "CUDA shared memory region 'theirs' cannot be opened: CUDA error 1 "
    assert text.startswith(f"[request id: r1] {what}")
    assert "Register it again" in text
    assert handle.hex()[:16] not in text
    assert "cuda:" not in text
    assert gpu.last == 0, "or a later call would be blamed for it"


def test_a_place_that_cannot_be_opened_fails_before_the_model_runs(
    table: RegionTable, handle: bytes
) -> None:
    fake_cuda_ipc.forget_another(handle)
    backend = ScriptedBackend(doubled)
    request = request_of(inline("IN", "FP32", (1, 4), 16), outputs=wanted(0, 64))
    assert "'theirs'" in error_of(run(backend, table, request))[1]
    assert backend.sizes == []


def test_less_memory_than_was_registered_is_refused_and_closed(
    table: RegionTable, handle: bytes
) -> None:
    table.define([cuda_region(handle, 257, 0, "greedy", region_id=2)])
    with pytest.raises(RequestError, match=r"'greedy' was registered with 257 bytes") as caught:
        table.device.span(2, 0, 4)
    assert fake_cuda_ipc.open_count(handle) == 0
    assert "and its memory has 256;" in caught.value.message, "somebody still has the error"


def test_an_event_that_cannot_be_opened_leaves_nothing_open(handle: bytes) -> None:
    """Not even as long as somebody has the error."""
    regions = DeviceRegions(fake_cuda_ipc.loaded)
    regions.define(cuda_region(handle, 256, 0, "late", event=bytes(64), region_id=1))
    with pytest.raises(RequestError, match="'late' cannot be opened") as caught:
        regions.span(1, 0, 4)
    assert fake_cuda_ipc.open_count(handle) == 0
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("function", ["cudaIpcCloseMemHandle", "cudaEventDestroy"])
def test_what_cannot_be_closed_is_forgotten_all_the_same(
    handle: bytes, gpu: fake_cudart.Device, function: str
) -> None:
    """Its owner, or the context, may be gone; the other half is given back."""
    event = fake_cuda_ipc.event_of_another()
    table = RegionTable(DeviceRegions(fake_cuda_ipc.loaded))
    table.define([cuda_region(handle, 256, 0, "theirs", event=event, region_id=1)])
    table.device.span(1, 0, 4)
    gpu.fail(function, 801)
    assert table.forget([1]) == (1,)
    left = fake_cuda_ipc.open_count(handle), len(gpu.events)
    assert left == ((1, 0) if function == "cudaIpcCloseMemHandle" else (0, 1))


def test_a_lost_gpu_is_told_where_regions_are_opened_for_the_first_time(
    table: RegionTable, gpu: fake_cudart.Device
) -> None:
    gpu.fail("cudaGetDeviceCount", 719)
    with pytest.raises(InstanceLost, match="CUDA error 719"):
        run(ScriptedBackend(doubled), table, given())


def test_a_gpu_that_cannot_be_counted_now_is_asked_again(
    table: RegionTable, gpu: fake_cudart.Device
) -> None:
    gpu.fail("cudaGetDeviceCount", 2)
    code, text, _ = error_of(run(ScriptedBackend(doubled), table, given()))
    assert code == Code.UNSUPPORTED
    assert "CUDA sees no GPU (cudaErrorMemoryAllocation)" in text
    assert gpu.last == 0, "no later call is blamed for it"
    assert first(run(ScriptedBackend(doubled), table, given())).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(("offset", "size"), [(256, 1), (255, 2), (0, 257), (2**63, 1)])
def test_ranges_outside_of_the_region_are_refused(
    table: RegionTable, offset: int, size: int
) -> None:
    with pytest.raises(RequestError, match="'theirs'"):
        table.device.span(1, offset, size)


def no_bindings(name: str) -> Any:
    raise ModuleNotFoundError(f"No module named '{name}'")


@pytest.mark.parametrize(
    ("importer", "why"),
    [
        (no_bindings, r"cuda.bindings cannot be imported .*pip install 'naiad\[cuda\]'"),
        (lambda name: fake_cuda_ipc, "no NVIDIA driver .*cudaErrorInsufficientDriver"),
    ],
)
def test_a_worker_without_cuda_says_what_is_missing(
    handle: bytes, gpu: fake_cudart.Device, importer: Any, why: str
) -> None:
    gpu.driver_error = 35
    table = RegionTable(DeviceRegions(lambda: cuda_runtime(importer)))
    table.define([cuda_region(handle, 256, 0, "theirs", region_id=1)])
    with pytest.raises(RequestError, match=f"'theirs' cannot be used by .*{why}") as caught:
        table.device.span(1, 0, 4)
    assert caught.value.code is Code.UNSUPPORTED


def test_a_machine_without_gpus_is_told_apart(gpu: fake_cudart.Device) -> None:
    gpu.count = 0
    with pytest.raises(CudaMissing, match="CUDA sees no GPU"):
        fake_cuda_ipc.loaded()


def test_a_copy_that_fails_fails_its_request_alone(
    table: RegionTable, gpu: fake_cudart.Device
) -> None:
    gpu.fail("cudaMemcpy", 1, after=1)
    done = run(ScriptedBackend(doubled), table, given(ident=1), given(ident=2), given(ident=3))
    assert [result.error is None for result in done.results] == [True, False, True]
    error = done.results[1].error
    assert error is not None
    assert error[0] == Code.MODEL_ERROR
    assert "CUDA error 1" in error[1]


@pytest.mark.parametrize("function", ["cudaIpcOpenMemHandle", "cudaMemcpy"])
@pytest.mark.parametrize("backend", [ScriptedBackend, DeviceBackend])
def test_a_lost_gpu_ends_the_worker(
    table: RegionTable, gpu: fake_cudart.Device, function: str, backend: Any
) -> None:
    gpu.fail(function, 700)
    with pytest.raises(InstanceLost, match="CUDA error 700"):
        run(backend(doubled), table, given())


def test_a_gpu_lost_while_outputs_are_written_ends_the_worker(
    table: RegionTable, gpu: fake_cudart.Device
) -> None:
    gpu.fail("cudaMemcpy", 719)
    request = request_of(inline("IN", "FP32", (1, 4), 16), outputs=wanted(0, 64))
    with pytest.raises(InstanceLost, match="CUDA error 719"):
        run(ScriptedBackend(doubled), table, request)


def test_without_cuda_a_copy_is_an_error_in_words(gpu: fake_cudart.Device) -> None:
    def missing() -> Any:
        raise CudaMissing("there is none")

    with pytest.raises(ModelError, match="there is none"):
        DeviceRegions(missing).host_copy(DeviceSpan(1, 1))

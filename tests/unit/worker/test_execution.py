"""A batch through a model: reading, running, halving, writing; each request's fault is its own."""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from naiad.protocol import messages as m
from naiad.protocol.errors import Code, ModelError, NaiadError, RequestError
from naiad.shm.page import PageReader, SlotPage
from naiad.worker.backends.base import InstanceLost, ModelRequest, ModelResponse, OutputTensor
from naiad.worker.execution import ExecutedBatch
from naiad.worker.gpu_health import GpuHealth
from naiad.worker.results import ERROR_CHARS_MAX
from naiad.worker.tensors import pack_bytes
from support.worker_parts import (
    HeapArena,
    HeapRegions,
    ScriptedBackend,
    batch_of,
    config_of,
    execution_of,
    inline,
    request_of,
    tensor_json,
)

TENSORS = [tensor_json("IN", "TYPE_FP32", -1)], [tensor_json("OUT", "TYPE_FP32", -1)]
CONFIG = config_of(*TENSORS, dynamic_batching={})
STRINGS = config_of([tensor_json("IN", "TYPE_STRING", 1)], [tensor_json("OUT", "TYPE_STRING", 1)])


def echo(request: ModelRequest) -> ModelResponse:
    tensor = request.inputs["IN"]
    return ModelResponse([OutputTensor("OUT", tensor.datatype, tensor.shape, buffer=tensor.buffer)])


def fp32(ident: int, frame: int = 0, offset: int = 0, items: int = 4, **more: Any) -> Any:
    return request_of(
        inline("IN", "FP32", (1, items), 4 * items, offset, frame), ident=ident, **more
    )


def content(done: ExecutedBatch, tensor: m.Tensor) -> bytes:
    return bytes(done.frames[tensor.region])[tensor.offset : tensor.offset + tensor.size]


def test_small_outputs_of_all_requests_share_one_frame() -> None:
    payload = np.arange(8, dtype="float32").tobytes()
    done = execution_of(ScriptedBackend(echo), CONFIG).run(
        batch_of([fp32(1), fp32(2, offset=16)], [payload]), set()
    )
    assert [bytes(frame) for frame in done.frames] == [payload]
    assert [result.outputs for result in done.results] == [
        (inline("OUT", "FP32", (1, 4), 16),),
        (inline("OUT", "FP32", (1, 4), 16, 16),),
    ]
    assert done.splits == 0


def test_large_outputs_are_lent_or_go_inline_when_there_is_no_room() -> None:
    items = 8192
    payload = np.arange(items, dtype="float32").tobytes()
    arena = HeapArena(room_bytes=len(payload))
    done = execution_of(ScriptedBackend(echo), CONFIG, arena=arena).run(
        batch_of([fp32(1, items=items), fp32(2), fp32(3, items=items)], [payload]), set()
    )
    lent, small, large = (result.outputs[0] for result in done.results)
    assert (lent.place, lent.region, lent.size) == (m.Place.LEASE, 77, len(payload))
    assert arena.lent == {(1, 1): [payload]}
    assert content(done, small) == payload[:16]
    assert (large.place, large.offset) == (m.Place.INLINE, 0)
    assert bytes(done.frames[large.region]) == payload


def test_outputs_go_where_the_client_wants_them() -> None:
    memory = bytearray(b"\xee" * 64)
    wanted = (m.OutputRequest("OUT", m.Place.REGION, 3, 24, 32),)
    payload = np.arange(4, dtype="float32").tobytes()
    done = execution_of(ScriptedBackend(echo), CONFIG).run(
        batch_of([fp32(1, outputs=wanted)], [payload], HeapRegions(r3=memory)), set()
    )
    assert done.results[0].outputs == (m.Tensor("OUT", "FP32", (1, 4), m.Place.REGION, 3, 24, 16),)
    assert memory == b"\xee" * 24 + payload + b"\xee" * 24


def test_a_backend_may_write_into_the_clients_memory_itself() -> None:
    memory = bytearray(64)

    def write_in_place(request: ModelRequest) -> ModelResponse:
        place = request.places["OUT"]
        place[:16].view("float32")[:] = 7
        return ModelResponse([OutputTensor("OUT", "FP32", (1, 4), buffer=place[:16].data)])

    wanted = (m.OutputRequest("OUT", m.Place.REGION, 3, 32, 32),)
    done = execution_of(ScriptedBackend(write_in_place), CONFIG).run(
        batch_of([fp32(1, outputs=wanted)], [bytes(16)], HeapRegions(r3=memory)), set()
    )
    assert done.results[0].error is None
    assert np.frombuffer(memory, "float32").tolist() == [0] * 8 + [7] * 4 + [0] * 4


def test_an_output_too_large_for_its_place_fails_with_tritons_text() -> None:
    wanted = (m.OutputRequest("OUT", m.Place.REGION, 3, 0, 15),)
    memory = bytearray(64)
    done = execution_of(ScriptedBackend(echo), CONFIG).run(
        batch_of([fp32(1, outputs=wanted)], [bytes(range(16))], HeapRegions(r3=memory)), set()
    )
    error = done.results[0].error
    assert error is not None
    assert "output 'OUT' (15 bytes) should be at least 16 bytes to hold the results" in error[1]
    assert memory == bytes(64)


@pytest.mark.parametrize(("second_at", "is_apart"), [(16, True), (15, False), (0, False)])
def test_two_outputs_of_a_request_may_not_lie_over_each_other(
    second_at: int, is_apart: bool
) -> None:
    """Their places may: what counts is what was written."""
    config = config_of(
        [tensor_json("IN", "TYPE_FP32", -1)],
        [tensor_json("OUT", "TYPE_FP32", -1), tensor_json("OUT2", "TYPE_FP32", -1)],
    )

    def both(request: ModelRequest) -> ModelResponse:
        tensor = request.inputs["IN"]
        names = ("OUT", "OUT2")
        return ModelResponse(
            [OutputTensor(name, "FP32", tensor.shape, buffer=tensor.buffer) for name in names]
        )

    wanted = (
        m.OutputRequest("OUT", m.Place.REGION, 3, 0, 64),
        m.OutputRequest("OUT2", m.Place.REGION, 3, second_at, 48),
    )
    done = execution_of(ScriptedBackend(both), config).run(
        batch_of([fp32(1, outputs=wanted)], [bytes(16)], HeapRegions(r3=bytearray(64))), set()
    )
    error = done.results[0].error
    assert (error is None) is is_apart
    assert error is None or "'OUT' (16 bytes at 0) and 'OUT2'" in error[1]


def test_only_the_guilty_request_of_a_failing_batch_fails() -> None:
    def fail_third(request: ModelRequest) -> ModelResponse:
        if request.label == "r3":
            raise ValueError("no threes")
        return echo(request)

    backend = ScriptedBackend(fail_third)
    done = execution_of(backend, CONFIG).run(
        batch_of([fp32(ident) for ident in range(1, 9)], [bytes(16)]), set()
    )
    assert [result.error is None for result in done.results] == [True, True, False] + [True] * 5
    assert done.results[2].error == (Code.MODEL_ERROR, "ValueError: no threes", False)
    assert backend.sizes == [8, 4, 2, 2, 1, 1, 4]
    assert done.splits == len(backend.sizes) - 1


@pytest.mark.parametrize(
    ("fault", "is_models"),
    [
        (ModelError("what it says"), True),
        (ModelError("what it says", code=Code.NOT_FOUND), True),
        (ModelError("what it says", code=Code.UNAVAILABLE, retryable=True), True),
        (ModelError("what it says", code=Code.MODEL_OUTPUT_INVALID), False),
        (RequestError("what it says"), False),
    ],
)
def test_a_models_own_text_is_told_as_it_is(fault: NaiadError, is_models: bool) -> None:
    done = execution_of(ScriptedBackend(lambda request: fault), CONFIG).run(
        batch_of([fp32(7)], [bytes(16)]), set()
    )
    text = "what it says" if is_models else "[request id: r7] what it says"
    assert done.results[0].error == (fault.code, text, fault.retryable)


def test_what_cannot_be_read_or_sent_is_told_with_the_request() -> None:
    execution = execution_of(ScriptedBackend(echo), CONFIG)
    batch = batch_of([fp32(7, items=5)], [bytes(16)])
    error = execution.run(batch, set()).results[0].error
    assert error is not None
    assert error[1].startswith("[request id: r7] ")
    refused = ModelError("too large", code=Code.MODEL_OUTPUT_INVALID)
    assert execution.refuse(batch.requests[0], refused)[1] == "[request id: r7] too large"
    assert execution.refuse(batch.requests[0]._replace(label=""), refused) == refused.wire()


def test_halving_can_be_switched_off() -> None:
    config = config_of(
        *TENSORS,
        dynamic_batching={},
        parameters={"naiad.split_failed_batches": {"string_value": "false"}},
    )

    def fail(request: ModelRequest) -> ModelResponse:
        raise RuntimeError("always")

    backend = ScriptedBackend(fail)
    done = execution_of(backend, config).run(batch_of([fp32(1), fp32(2)], [bytes(16)]), set())
    assert backend.sizes == [2]
    assert [result.error for result in done.results] == [
        (Code.MODEL_ERROR, "RuntimeError: always", False)
    ] * 2


def always_fails(request: ModelRequest) -> ModelResponse:
    raise RuntimeError("always")


@pytest.mark.parametrize("size", [2, 8])
def test_a_model_without_retry_is_executed_once_also_when_it_raises(size: int) -> None:
    config = config_of(
        *TENSORS,
        dynamic_batching={},
        parameters={"naiad.retry": {"string_value": "false"}},
    )
    backend = ScriptedBackend(always_fails)
    requests = [fp32(ident) for ident in range(size)]
    done = execution_of(backend, config).run(batch_of(requests, [bytes(16)]), set())
    assert (backend.sizes, done.splits) == ([size], 0)
    fault = (Code.MODEL_ERROR, "RuntimeError: always", False)
    assert [result.error for result in done.results] == [fault] * size


@pytest.mark.parametrize(
    ("region", "offset", "sizes"),
    [
        (3, 0, [2]),
        (3, 15, [2]),
        (3, 16, [2, 1, 1]),
        (4, 0, [2, 1, 1]),
    ],
)
def test_a_batch_with_an_output_over_an_input_is_not_run_again(
    region: int, offset: int, sizes: list[int]
) -> None:
    """What the model had written before it raised would be the input of the second run."""
    there = m.Tensor("IN", "FP32", (1, 4), m.Place.REGION, 3, 0, 16)
    wanted = (m.OutputRequest("OUT", m.Place.REGION, region, offset, 16),)
    regions = HeapRegions(r3=bytearray(64), r4=bytearray(64))
    backend = ScriptedBackend(always_fails)
    requests = [fp32(1), request_of(there, ident=2, outputs=wanted)]
    done = execution_of(backend, CONFIG).run(batch_of(requests, [bytes(16)], regions), set())
    assert backend.sizes == sizes
    assert all(result.error is not None for result in done.results)


def test_an_exit_inside_the_model_is_its_error_and_nothing_more() -> None:
    def leave(request: ModelRequest) -> ModelResponse:
        raise SystemExit(3)

    done = execution_of(ScriptedBackend(leave), CONFIG).run(batch_of([fp32(1)], [bytes(16)]), set())
    assert done.results[0].error == (Code.MODEL_ERROR, "SystemExit: 3", False)


def test_a_lost_instance_is_nobodys_failed_batch() -> None:
    def loses(request: ModelRequest) -> ModelResponse:
        raise InstanceLost("CUDA error 719")

    execution = execution_of(ScriptedBackend(loses), CONFIG)
    with pytest.raises(InstanceLost, match="CUDA error 719"):
        execution.run(batch_of([fp32(1), fp32(2)], [bytes(16)]), set())


@pytest.mark.parametrize("is_raised", [True, False])
def test_an_error_that_cuda_never_leaves_loses_the_instance(
    is_raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised by the model, or given back for one request of several; on the CPU it is mere text."""
    monkeypatch.setattr(GpuHealth, "_asked", lambda self: 700)
    text = "CUDA error: an illegal memory access was encountered"

    def fails(request: ModelRequest) -> ModelResponse | NaiadError:
        if is_raised:
            raise RuntimeError(text)
        return ModelError(text)

    batch = batch_of([fp32(1), fp32(2)], [bytes(16)])
    with pytest.raises(InstanceLost, match="CUDA error 700"):
        execution_of(ScriptedBackend(fails), CONFIG, gpu_uuid="GPU-a").run(batch, set())
    done = execution_of(ScriptedBackend(fails), CONFIG).run(batch, set())
    assert all(result.error is not None for result in done.results)


def test_memory_that_a_batch_has_not_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(ScriptedBackend):
        def execute(self, batch: Any) -> Any:
            if len(batch) > 1:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().execute(batch)

    execution = execution_of(Large(echo), CONFIG, gpu_uuid="GPU-a")
    done = execution.run(batch_of([fp32(1), fp32(2)], [bytes(16)]), set())
    assert [result.error for result in done.results] == [None, None]
    assert done.splits == 2


def test_the_error_names_the_line_of_the_models_own_file(tmp_path: Any) -> None:
    source = tmp_path / "1" / "model.py"
    source.parent.mkdir()
    source.write_text("def run(request):\n    return request.inputs['NOPE']\n")
    space: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), space)
    done = execution_of(ScriptedBackend(space["run"]), CONFIG, directory=str(tmp_path)).run(
        batch_of([fp32(1)], [bytes(16)]), set()
    )
    assert done.results[0].error == (Code.MODEL_ERROR, "KeyError: 'NOPE' (model.py:2)", False)


def test_a_wrong_number_of_responses_is_said_with_both_numbers() -> None:
    class Short(ScriptedBackend):
        def execute(self, batch: Any) -> Any:
            return super().execute(batch)[1:]

    done = execution_of(Short(echo), CONFIG).run(batch_of([fp32(1)], [bytes(16)]), set())
    error = done.results[0].error
    assert error is not None
    assert error[0] == Code.MODEL_OUTPUT_INVALID
    assert "expected 1 responses, one for each request, got 0" in error[1]


@pytest.mark.parametrize("answer", [None, 7, [1]])
def test_a_response_that_is_none_fails_its_request_alone(answer: Any) -> None:
    def odd(request: ModelRequest) -> Any:
        return answer if request.label == "r1" else echo(request)

    done = execution_of(ScriptedBackend(odd), CONFIG).run(
        batch_of([fp32(1), fp32(2)], [bytes(16)]), set()
    )
    first, second = done.results
    assert first.error is not None
    assert "expected a response made of output tensors" in first.error[1]
    assert second.error is None


@pytest.mark.parametrize(
    "buffer", [bytes(range(16)), bytearray(range(16)), memoryview(bytearray(range(16)))]
)
def test_what_acts_like_the_promised_types_is_as_good(buffer: Any) -> None:
    def loose(request: ModelRequest) -> ModelResponse:
        output = OutputTensor("OUT", "FP32", [1, 4], buffer=buffer)
        return ModelResponse((output,), MappingProxyType({"a": 2**63}))

    done = execution_of(ScriptedBackend(loose), CONFIG).run(
        batch_of([fp32(1), fp32(2)], [bytes(16)]), set()
    )
    for result in done.results:
        assert result.error is None
        assert content(done, result.outputs[0]) == bytes(range(16))
        assert result.parameters == {"a": 2**63}


def test_an_array_of_another_dtype_names_the_output() -> None:
    def doubled(request: ModelRequest) -> ModelResponse:
        return ModelResponse([OutputTensor("OUT", "FP32", (1, 4), array=np.zeros((1, 4)))])

    done = execution_of(ScriptedBackend(doubled), CONFIG).run(
        batch_of([fp32(1)], [bytes(16)]), set()
    )
    error = done.results[0].error
    assert error is not None
    assert "output 'OUT' of datatype FP32: expected an array of float32, got float64" in error[1]


def test_what_was_lent_is_taken_back_when_the_request_fails_after_all() -> None:
    config = config_of(
        [tensor_json("IN", "TYPE_FP32", -1)],
        [tensor_json("OUT", "TYPE_FP32", -1), tensor_json("MORE", "TYPE_FP32", -1)],
    )

    def half(request: ModelRequest) -> ModelResponse:
        good = OutputTensor("OUT", "FP32", (1, 8192), buffer=bytes(4 * 8192))
        return ModelResponse([good, OutputTensor("MORE", "FP32", (1, 2), buffer=b"short")])

    arena = HeapArena(room_bytes=1 << 20)
    done = execution_of(ScriptedBackend(half), config, arena=arena).run(
        batch_of([fp32(1)], [bytes(16)]), set()
    )
    error = done.results[0].error
    assert error is not None
    assert "output 'MORE': expected 8 bytes for FP32 [1, 2], got 5" in error[1]
    assert arena.lent == {}


def test_a_malformed_string_input_fails_its_request_alone() -> None:
    good, bad = pack_bytes([b"abc"]), b"\xff\xff\xff\xff"
    requests = [
        request_of(inline("IN", "BYTES", (1, 1), len(bad)), ident=1),
        request_of(inline("IN", "BYTES", (1, 1), len(good), len(bad)), ident=2),
    ]
    done = execution_of(ScriptedBackend(echo), STRINGS).run(batch_of(requests, [bad + good]), set())
    first, second = done.results
    assert first.error is not None
    assert first.error[0] == Code.INVALID_ARGUMENT
    assert "input 'IN': string element 0: its length says 4294967295 bytes" in first.error[1]
    assert content(done, second.outputs[0]) == good


def test_strings_in_shared_memory_are_copied_before_they_are_parsed() -> None:
    packed = pack_bytes([b"abc"])
    memory = bytearray(packed)

    def overwrite_and_echo(request: ModelRequest) -> ModelResponse:
        memory[:4] = b"\xff\xff\xff\xff"
        assert request.inputs["IN"].array().tolist() == [[b"abc"]]
        return echo(request)

    tensor = m.Tensor("IN", "BYTES", (1, 1), m.Place.REGION, 3, 0, len(packed))
    done = execution_of(ScriptedBackend(overwrite_and_echo), STRINGS).run(
        batch_of([request_of(tensor)], [], HeapRegions(r3=memory)), set()
    )
    assert content(done, done.results[0].outputs[0]) == packed


def test_abandoned_requests_are_not_executed() -> None:
    backend = ScriptedBackend(echo)
    done = execution_of(backend, CONFIG).run(
        batch_of([fp32(1), fp32(2)], [bytes(16)]), {(1, 1), (9, 9)}
    )
    first, second = done.results
    assert first.error is not None
    assert first.error[0] == Code.CANCELLED
    assert second.error is None
    assert backend.sizes == [1]


def test_a_batch_of_abandoned_requests_is_not_executed_at_all() -> None:
    backend = ScriptedBackend(echo)
    done = execution_of(backend, CONFIG).run(batch_of([fp32(1)], [bytes(16)]), {(1, 1)})
    assert backend.sizes == []
    assert done.results[0].error is not None


def test_the_model_sees_its_own_shape_and_the_client_gets_its_own() -> None:
    config = config_of(
        [tensor_json("IN", "TYPE_FP32", 2, 2, reshape={"shape": [4]})],
        [tensor_json("OUT", "TYPE_FP32", 2, 2, reshape={"shape": [4]})],
    )
    seen: list[tuple[int, ...]] = []

    def look(request: ModelRequest) -> ModelResponse:
        seen.append(request.inputs["IN"].shape)
        return echo(request)

    request = request_of(inline("IN", "FP32", (1, 2, 2), 16))
    done = execution_of(ScriptedBackend(look), config).run(batch_of([request], [bytes(16)]), set())
    assert seen == [(1, 4)]
    assert done.results[0].outputs[0].shape == (1, 2, 2)


def test_error_texts_of_a_batch_fit_into_one_header() -> None:
    def fail(request: ModelRequest) -> RequestError:
        return RequestError("é" * 8000)

    done = execution_of(ScriptedBackend(fail), CONFIG).run(
        batch_of([fp32(ident) for ident in range(200)], [bytes(16)]), set()
    )
    assert sum(len(result.error[1]) for result in done.results if result.error) <= ERROR_CHARS_MAX
    assert all(result.error and len(result.error[1]) > 100 for result in done.results)


def test_request_fields_reach_the_model() -> None:
    seen: list[ModelRequest] = []

    def look(request: ModelRequest) -> ModelResponse:
        seen.append(request)
        return echo(request)

    request = fp32(
        4,
        parameters={"k": 1},
        priority=3,
        remaining_us=250,
        sequence=m.Sequence("s", True, False),
    )
    execution_of(ScriptedBackend(look), CONFIG).run(batch_of([request], [bytes(16)]), set())
    (got,) = seen
    assert (got.label, got.parameters, got.priority, got.timeout_us) == ("r4", {"k": 1}, 3, 250)
    assert (got.sequence_id, got.sequence_start, got.sequence_end) == ("s", True, False)
    assert got.requested_outputs == ("OUT",)
    assert not got.is_cancelled()


def test_responses_that_fail_when_they_are_looked_at_cost_their_request() -> None:
    class Lazy(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            if index == 1:
                raise SystemExit(3)
            return super().__getitem__(index)

    class Backend(ScriptedBackend):
        def execute(self, batch: Any) -> Any:
            return Lazy(super().execute(batch))

    done = execution_of(Backend(echo), CONFIG).run(
        batch_of([fp32(1), fp32(2), fp32(3)], [bytes(16)]), set()
    )
    assert [result.error is None for result in done.results] == [True, False, True]


def test_an_exception_without_a_text_fails_its_request_alone() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    def fail_second(request: ModelRequest) -> ModelResponse:
        if request.label == "r2":
            raise Odd
        return echo(request)

    done = execution_of(ScriptedBackend(fail_second), CONFIG).run(
        batch_of([fp32(1), fp32(2), fp32(3)], [bytes(16)]), set()
    )
    assert [result.error is None for result in done.results] == [True, False, True]
    assert "Odd'>: (its text cannot be had" in str(done.results[1].error)


class Overlapping(ScriptedBackend):
    """Asks for the next batch while it executes one, and lets it begin ahead."""

    def __init__(self) -> None:
        super().__init__(echo)
        self.staged: Any = None
        self.taken: list[bool] = []
        self.began: list[bool] = []
        self.unstaged = 0
        self.copied_in_ns = 0
        self.named: Callable[[], int] = lambda: 0
        """Whom the page would blame for a death."""
        self.blamed: list[int] = []

    def overlap(self, meanwhile: Any, ahead: Any) -> None:
        self.meanwhile, self.ahead = meanwhile, ahead

    def stage(self, batch: Any) -> None:
        self.staged = batch

    def unstage(self) -> None:
        self.staged = None
        self.unstaged += 1

    def execute(self, batch: Any) -> Any:
        self.taken.append(batch is self.staged)
        for _ in range(2):
            self.meanwhile()
        before = self.named()
        self.began.append(self.ahead())
        self.blamed = [before, self.named()]
        return super().execute(batch)


def overlapping(waiting: list[Any]) -> tuple[Overlapping, Any]:
    backend = Overlapping()
    execution = execution_of(backend, CONFIG)
    execution.overlap(lambda: waiting[0] if waiting else None, lambda batch: batch in waiting)
    return backend, execution


def test_the_next_batch_is_read_and_staged_while_one_is_executed() -> None:
    first, second = (batch_of([fp32(n)], [bytes([n]) * 16])._replace(id=n) for n in (1, 2))
    backend, execution = overlapping([second])
    execution.run(first, set())
    assert [request.label for request in backend.staged] == ["r2"]
    done = execution.run(second, set())
    assert backend.taken == [False, True]
    assert bytes(done.frames[0]) == bytes([2]) * 16
    assert backend.unstaged == 0


def paged(backend: Overlapping, execution: Any, path: Path) -> None:
    """With a page that the test reads as the broker does."""
    execution._page = SlotPage(str(path))
    execution._page.start()

    def named() -> int:
        reader = PageReader.open(str(path))
        page = reader.read()
        reader.close()
        assert page is not None
        return page.executing

    backend.named = named


def test_the_page_names_the_batch_that_the_device_began_last(tmp_path: Path) -> None:
    first, second = (batch_of([fp32(n)], [bytes(16)])._replace(id=n) for n in (1, 2))
    backend, execution = overlapping([second])
    paged(backend, execution, tmp_path / "page")
    execution.run(first, set())
    assert (backend.began, backend.blamed) == ([True], [1, 2])


def test_the_device_does_not_begin_what_was_given_back(tmp_path: Path) -> None:
    first, second = (batch_of([fp32(n)], [bytes(16)])._replace(id=n) for n in (1, 2))
    backend, execution = overlapping([second])
    paged(backend, execution, tmp_path / "page")
    execution._may_begin = lambda _: False
    execution.run(first, set())
    assert (backend.began, backend.blamed) == ([False], [1, 1])


def test_a_request_that_is_abandoned_after_it_was_staged_is_not_executed() -> None:
    first, second = batch_of([fp32(1)], [bytes(16)]), batch_of([fp32(2), fp32(3)], [bytes(16)])
    backend, execution = overlapping([second])
    execution.run(first, set())
    done = execution.run(second, {(1, 2)})
    assert [result.error is None for result in done.results] == [False, True]
    assert backend.unstaged == 1
    assert backend.sizes == [1, 1]


def test_a_staged_batch_that_was_given_back_is_let_go() -> None:
    first, second = (batch_of([fp32(n)], [bytes(16)]) for n in (1, 2))
    waiting = [second]
    backend, execution = overlapping(waiting)
    execution.run(first, set())
    execution.drop_ahead(waiting)
    assert backend.unstaged == 0
    execution.drop_ahead([])
    assert backend.unstaged == 1
    waiting.clear()
    execution.run(first, set())
    assert backend.taken == [False, False]


def test_the_way_to_the_device_counts_as_input_and_not_as_inference() -> None:
    backend, execution = overlapping([])
    backend.copied_in_ns = 10**12
    told = execution.run(batch_of([fp32(1)], [bytes(16)]), set()).durations
    assert told.infer_ns == 0
    assert told.input_ns > 0
    backend.copied_in_ns = 0
    assert execution.run(batch_of([fp32(1)], [bytes(16)]), set()).durations.infer_ns > 0

"""InferAnswer to the bytes that stock clients read, and back again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from tritonclient.grpc import InferInput, InferResult, service_pb2
from tritonclient.grpc._utils import _get_inference_request

from naiad.gateway.calls import AnswerOutput, InferAnswer
from naiad.gateway.grpc_codec.answers import (
    encoded_answer,
    encoded_fault,
    encoded_part,
)
from naiad.gateway.grpc_codec.requests import decoded_request
from naiad.gateway.grpc_codec.status import STATUS_OF, Status
from naiad.gateway.grpc_codec.wire import JOINED_BYTES_MAX, varint
from naiad.protocol.errors import Code


def parsed(data: bytes) -> Any:
    return service_pb2.ModelInferResponse.FromString(data)


def output(name: str, data: bytes | None, count: int = 2) -> AnswerOutput:
    return AnswerOutput(name, "FP32", (count,), None if data is None else memoryview(data))


def test_an_answer_has_one_raw_entry_for_each_output() -> None:
    first, last = np.array([1, 2], "<f4"), np.array([3, 4], "<f4")
    outputs = (output("a", first.tobytes()), output("shm", None), output("b", last.tobytes()))

    message = parsed(b"".join(encoded_answer(InferAnswer("m", 3, "r", outputs))))

    assert (message.model_name, message.model_version, message.id) == ("m", "3", "r")
    assert list(message.raw_output_contents) == [first.tobytes(), b"", last.tobytes()]
    result = InferResult(message)
    assert result.as_numpy("b").tolist() == [3, 4]
    assert not message.parameters


def test_parameters_of_every_type() -> None:
    given: dict[str, str | int | float | bool] = {"b": True, "i": -5, "s": "text", "d": 0.5}

    message = parsed(b"".join(encoded_answer(InferAnswer("m", 1, "", (), given))))

    found = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in message.parameters.items()
    }
    assert found == given
    assert type(found["b"]) is bool


@pytest.mark.parametrize("is_final", [True, False])
def test_an_item_of_a_stream_says_whether_it_is_the_last(is_final: bool) -> None:
    answer = InferAnswer("m", 1, "r", (output("a", bytes(8)),))

    (part,) = encoded_part(answer, is_final=is_final)
    item = service_pb2.ModelStreamInferResponse.FromString(bytes(part))

    assert item.error_message == ""
    assert item.infer_response.raw_output_contents == [bytes(8)]
    assert item.infer_response.parameters["triton_final_response"].bool_param is is_final


@pytest.mark.parametrize("text", ["it failed", ""])
def test_a_fault_in_a_stream(text: str) -> None:
    item = service_pb2.ModelStreamInferResponse.FromString(encoded_fault(text, "r"))

    assert item.error_message == (text or "unknown error")
    assert item.infer_response == service_pb2.ModelInferResponse(id="r")


def test_a_fault_of_a_request_that_was_taken_is_its_final_answer() -> None:
    item = service_pb2.ModelStreamInferResponse.FromString(encoded_fault("no", "r", "m"))

    assert (item.infer_response.id, item.infer_response.model_name) == ("r", "m")
    assert item.infer_response.parameters["triton_final_response"].bool_param is True


def test_every_code_has_a_status_and_load_is_not_absence() -> None:
    assert set(STATUS_OF) == set(Code)
    assert STATUS_OF[Code.BUDGET_EXCEEDED] is Status.RESOURCE_EXHAUSTED
    assert STATUS_OF[Code.DRAINING] is Status.UNAVAILABLE


@pytest.mark.parametrize("number", [0, 127, 128, 16_383, 16_384, 2**35])
def test_varints(number: int) -> None:
    message = service_pb2.StatisticDuration.FromString(b"\x08" + varint(number))

    assert message.count == number


DTYPES = {
    "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, np.ndarray[Any, Any]]:
    if draw(st.booleans()):
        strings = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
        return "BYTES", np.array([*strings, None], dtype=object)[:-1]
    datatype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(st_np.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    return datatype, draw(st_np.arrays(DTYPES[datatype], shape))


@given(st.lists(tensors(), min_size=1, max_size=4), st.text(max_size=8), st.integers(0, 40_000))
def test_what_a_client_sends_comes_back_to_it(
    arrays: list[tuple[str, np.ndarray[Any, Any]]], ident: str, padding: int
) -> None:
    """An identity model between stock client code on both ends; large messages as well as small."""
    arrays.append(("UINT8", np.zeros(padding, np.uint8)))
    inputs = []
    for index, (datatype, array) in enumerate(arrays):
        tensor = InferInput(f"t{index}", list(array.shape), datatype)
        inputs.append(tensor.set_data_from_numpy(array))
    message = _get_inference_request(
        inputs=inputs, model_name="m", model_version="", request_id=ident, outputs=None,
        sequence_id=0, sequence_start=False, sequence_end=False, priority=0, timeout=None,
        parameters=None,
    )  # fmt: skip

    call = decoded_request(message.SerializeToString())
    outputs = tuple(
        AnswerOutput(one.name, one.datatype, one.shape, memoryview(one.data))  # type: ignore[arg-type]
        for one in call.inputs
    )
    answer = parsed(b"".join(encoded_answer(InferAnswer("m", 1, call.id, outputs))))

    result = InferResult(answer)
    assert answer.id == ident
    for index, (_, array) in enumerate(arrays):
        back = result.as_numpy(f"t{index}")
        assert back.dtype == array.dtype
        assert back.tobytes() == array.tobytes() or (back == array).all()
        assert back.shape == array.shape


def test_large_contents_are_not_copied() -> None:
    """And small ones go in one piece."""
    large = memoryview(bytes(JOINED_BYTES_MAX + 1))
    outputs = (
        AnswerOutput("O", "INT8", (len(large),), large),
        AnswerOutput("P", "INT8", (1,), memoryview(b"\7")),
    )
    answer = InferAnswer("m", 1, "", outputs)
    for parts in (encoded_answer(answer), encoded_part(answer, is_final=True)):
        assert any(part is large for part in parts)
        assert all(len(part) < 1000 for part in parts if part is not large)
    message = parsed(b"".join(encoded_answer(answer)))
    assert list(message.raw_output_contents) == [bytes(large), b"\7"]
    item = b"".join(encoded_part(answer, is_final=True))
    response = service_pb2.ModelStreamInferResponse.FromString(item).infer_response
    assert list(response.raw_output_contents) == [bytes(large), b"\7"]
    small = answer._replace(outputs=outputs[1:])
    assert len(encoded_answer(small)) == len(encoded_part(small, is_final=True)) == 1

"""Answers to HTTP bodies; and that what goes in as JSON comes out as the same JSON."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.gateway.calls import AnswerOutput, CallOutput, InferAnswer, InferCall
from naiad.gateway.classification import classified
from naiad.gateway.http_answer import answer_body
from naiad.gateway.http_request import infer_call
from naiad.gateway.http_status import STATUS_OF, error_body, from_fault
from naiad.gateway.json_tensors import from_json, to_json
from naiad.gateway.known_classes import Classes
from naiad.protocol.errors import Code, ModelError, RequestError, Unavailable

FLOATS = memoryview(struct.pack("<2f", 1.5, 2))


def call(*outputs: CallOutput, binary: bool = False) -> InferCall:
    return InferCall("m", -1, "", (), outputs, is_binary_by_default=binary)


def answer(*outputs: AnswerOutput, **more: Any) -> InferAnswer:
    return InferAnswer("m", 3, more.pop("id", ""), outputs, **more)


def test_large_arrays_are_parts_of_their_own() -> None:
    many = np.arange(30_000, dtype=np.float32)
    outputs = (
        AnswerOutput("A", "FP32", (30_000,), memoryview(many.tobytes())),
        AnswerOutput("B", "FP32", (2,), FLOATS),
        AnswerOutput("C", "FP32", (30_000,), memoryview(many.tobytes())),
        AnswerOutput("D", "FP32", (2,), FLOATS),
    )
    wishes = (CallOutput("D", is_binary=True),)
    for asked, behind in ((call(), b""), (call(*wishes), bytes(FLOATS))):
        body = answer_body(asked, answer(*outputs, id="x"), to_json)
        whole = b"".join(body.parts)
        assert body.json_length == (len(whole) - len(behind) if behind else None)
        assert whole.endswith(behind)
        found = json.loads(whole[: body.json_length])
        assert [one["name"] for one in found["outputs"]] == ["A", "B", "C", "D"]
        assert found["outputs"][0]["data"] == found["outputs"][2]["data"] == many.tolist()
        assert found["outputs"][1]["data"] == [1.5, 2.0]
        assert len(body.parts) == 5 + bool(behind)


def test_json_is_the_default_and_flat() -> None:
    body = answer_body(call(), answer(AnswerOutput("O", "FP32", (1, 2), FLOATS)), to_json)
    assert body.json_length is None
    assert b"".join(body.parts) == (
        b'{"model_name":"m","model_version":"3","outputs":'
        b'[{"name":"O","datatype":"FP32","shape":[1,2],"data":[1.5,2.0]}]}'
    )


def test_binary_outputs_follow_in_order_without_a_copy() -> None:
    given_ = answer(
        AnswerOutput("X", "FP32", (2,), FLOATS),
        AnswerOutput("Y", "INT8", (2,), memoryview(b"ab")),
        id='a"b',
        parameters={"p": 1},
    )
    body = answer_body(
        call(CallOutput("X", is_binary=True), CallOutput("Y", is_binary=True)), given_, to_json
    )
    assert body.parts[1] is FLOATS
    assert body.parts[2] == b"ab"
    assert body.json_length == len(body.parts[0])
    found = json.loads(bytes(body.parts[0]))
    assert found["id"] == 'a"b'
    assert found["parameters"] == {"p": 1}
    assert [one["parameters"] for one in found["outputs"]] == [
        {"binary_data_size": 8},
        {"binary_data_size": 2},
    ]


def test_a_listed_output_is_json_although_the_default_is_binary() -> None:
    given_ = answer(AnswerOutput("X", "FP32", (2,), FLOATS))
    assert answer_body(call(CallOutput("X"), binary=True), given_, to_json).json_length is None
    assert answer_body(call(binary=True), given_, to_json).json_length


def test_without_any_byte_behind_it_there_is_no_header() -> None:
    empty = answer(AnswerOutput("X", "FP32", (0,), memoryview(b"")))
    body = answer_body(call(binary=True), empty, to_json)
    assert body.json_length is None
    assert b'"binary_data_size":0' in body.parts[0]


def test_an_output_in_shared_memory_has_no_data() -> None:
    body = answer_body(call(binary=True), answer(AnswerOutput("X", "FP32", (2,), None)), to_json)
    assert json.loads(bytes(body.parts[0]))["outputs"] == [
        {"name": "X", "datatype": "FP32", "shape": [2]}
    ]


def test_nan_and_infinity_are_bare_words() -> None:
    odd = memoryview(struct.pack("<3d", math.nan, math.inf, -math.inf))
    assert to_json("O", "FP64", (3,), odd) == b"[NaN,Infinity,-Infinity]"


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("FP16", b"\0\0", "sending FP16 data via JSON is not supported"),
        ("BF16", b"\0\0", "sending BF16 data via JSON is not supported"),
        ("BYTES", b"\1\0\0\0\xff", "is not UTF-8"),
    ],
)
def test_what_json_cannot_hold(datatype: str, data: bytes, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        to_json("O", datatype, (1,), memoryview(data))


_ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "INT8": st.integers(-128, 127),
    "UINT64": st.integers(0, 2**64 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "FP32": st.floats(width=32, allow_nan=False),
    "FP64": st.floats(allow_nan=False),
    "BYTES": st.text(),
}


@given(st.data(), st.sampled_from(sorted(_ELEMENTS)), st.text(max_size=8))
def test_round_trip(data: st.DataObject, datatype: str, name: str) -> None:
    """What a model that returns its input is sent as JSON, it returns as the same JSON."""
    name = name.encode("utf-8", "ignore").decode()
    values = data.draw(st.lists(_ELEMENTS[datatype], max_size=20))
    one = {"name": name, "datatype": datatype, "shape": [len(values), 1]}
    nested = [[value] for value in values]
    text = json.dumps({"inputs": [{**one, "data": nested}], "id": name}).encode()
    asked = infer_call("m", 1, text, len(text), from_json, 1 << 20)
    given_ = asked.inputs[0]
    assert isinstance(given_.data, bytes)
    output = AnswerOutput(given_.name, given_.datatype, given_.shape, memoryview(given_.data))
    body = answer_body(asked, InferAnswer("m", 1, asked.id, (output,)), to_json)
    found = json.loads(b"".join(body.parts))
    assert found["outputs"] == [{**one, "data": values}]
    assert found.get("id", "") == name


def classes(values: Any, k: int, batch: int = 0, labels: Any = None) -> AnswerOutput:
    array = np.asarray(values)
    datatype = {"float32": "FP32", "uint8": "UINT8", "float16": "FP16"}[str(array.dtype)]
    given_ = AnswerOutput("O", datatype, array.shape, memoryview(array.tobytes()))
    return classified(given_, k, Classes("", batch > 0, labels or {}))


def texts(output: AnswerOutput) -> list[str]:
    assert output.data is not None
    length, found, offset = len(output.data), [], 0
    while offset < length:
        end = offset + 4 + int.from_bytes(output.data[offset : offset + 4], "little")
        found.append(bytes(output.data[offset + 4 : end]).decode())
        offset = end
    return found


def test_classification_of_a_batch() -> None:
    found = classes(np.array([[0.1, 3, 2], [5, 5, math.nan]], np.float32), 2, batch=8)
    assert (found.datatype, found.shape) == ("BYTES", (2, 2))
    assert texts(found) == ["3.000000:1", "2.000000:2", "5.000000:0", "5.000000:1"]


def test_classification_of_more_classes_than_elements() -> None:
    found = classes(np.array([[1, 255], [7, 7]], np.uint8), 9)
    assert found.shape == (4,)
    assert texts(found) == ["255:1", "7:2", "7:3", "1:0"]
    last = classes(np.array([math.nan, -math.inf], np.float32), 9)
    assert texts(last) == ["-inf:1", "nan:0"]


def test_classes_have_their_labels() -> None:
    """Of this output; an empty label, or none for so large an index, is left out."""
    values = np.array([0.1, 3, 2, 1], np.float32)
    found = classes(values, 4, labels={"O": ["low", "high", ""], "P": ["x"]})
    assert texts(found) == ["3.000000:1:high", "2.000000:2", "1.000000:3", "0.100000:0:low"]
    assert texts(classes(values, 1, labels={"P": ["x", "y"]})) == ["3.000000:1"]


def test_classification_refuses_by_name() -> None:
    with pytest.raises(RequestError, match="unsupported type 'FP16'"):
        classes(np.zeros(3, np.float16), 1)
    with pytest.raises(RequestError, match="at most 1000000"):
        classes(np.zeros(1_000_001, np.uint8), 1)


def test_every_code_has_a_status() -> None:
    assert set(STATUS_OF) == set(Code)


def test_load_says_when_to_come_back() -> None:
    full = from_fault(Unavailable("full", code=Code.QUEUE_FULL))
    assert (full.status, full.headers) == (503, (("Retry-After", "1"),))
    assert from_fault(Unavailable("budget", code=Code.BUDGET_EXCEEDED)).status == 429
    assert from_fault(ModelError("oops")).headers == ()


def test_no_internal_path_is_told() -> None:
    lost = Unavailable("nobody at ipc:///run/x", code=Code.CONNECTION_LOST)
    assert "ipc" not in from_fault(lost).message
    assert from_fault(lost).status == 503


def test_error_body_is_json_whatever_the_text() -> None:
    text = 'a"\n\ud800ü'
    assert json.loads(error_body(text))["error"] == text

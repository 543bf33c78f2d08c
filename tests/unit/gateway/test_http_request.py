"""HTTP bodies to calls: the three forms, every field, every refusal."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from naiad.gateway.calls import ANY_VERSION, CallInput, CallOutput, InferCall, RegionPart
from naiad.gateway.http_request import infer_call, json_length, raw_call, uses_regions
from naiad.gateway.json_tensors import from_json
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import Sequence

LIMIT = 1 << 20
BINARY = {"name": "A", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
JSON_INPUT = {"name": "A", "shape": [2], "datatype": "INT32", "data": [1, 2]}


def parse(request: dict[str, Any] | bytes, binary: bytes = b"", limit: int = LIMIT) -> InferCall:
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    return infer_call("m", ANY_VERSION, text + binary, len(text), from_json, limit)


def refused(request: dict[str, Any] | bytes, binary: bytes = b"", limit: int = LIMIT) -> str:
    with pytest.raises(RequestError) as raised:
        parse(request, binary, limit)
    return raised.value.message


def with_input(**changes: Any) -> dict[str, Any]:
    changed = {**JSON_INPUT, **changes}
    return {"inputs": [{key: value for key, value in changed.items() if value is not ...}]}


def test_binary_inputs_are_views_of_the_body_in_order() -> None:
    text = json.dumps({"inputs": [BINARY, {**BINARY, "name": "B"}], "id": "me"}).encode()
    body = text + struct.pack("<4f", 1, 2, 3, 4)
    call = infer_call("m", 3, body, len(text), from_json, LIMIT)
    assert [one.name for one in call.inputs] == ["A", "B"]
    for one in call.inputs:
        assert isinstance(one.data, memoryview)
        assert one.data.obj is body
    assert call.inputs[1].data == struct.pack("<2f", 3, 4)
    assert (call.model, call.version, call.id, call.outputs) == ("m", 3, "me", ())


def test_empty_binary_input() -> None:
    empty = {"name": "A", "shape": [0], "datatype": "FP32", "parameters": {"binary_data_size": 0}}
    assert bytes(parse({"inputs": [empty]}).inputs[0].data) == b""  # type: ignore[arg-type]


def test_json_input() -> None:
    assert parse({"inputs": [JSON_INPUT]}).inputs == (
        CallInput("A", "INT32", (2,), struct.pack("<2i", 1, 2)),
    )


def test_shared_memory_input_and_output() -> None:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    call = parse(
        {
            "inputs": [{**BINARY, "parameters": {**place, "shared_memory_offset": 16}}],
            "outputs": [{"name": "O", "parameters": place}],
        }
    )
    assert call.inputs[0].data == RegionPart("r", 16, 8)
    assert call.outputs == (CallOutput("O", 0, RegionPart("r", 0, 8), False),)
    assert uses_regions(call)
    assert not uses_regions(parse({"inputs": [JSON_INPUT]}))


def test_outputs_are_json_unless_they_say_binary() -> None:
    call = parse(
        {
            "inputs": [JSON_INPUT],
            "outputs": [
                {"name": "X"},
                {"name": "Y", "parameters": {"binary_data": True}},
                {"name": "Z", "parameters": {"classification": 3, "unknown": [1]}},
            ],
            "parameters": {"binary_data_output": True},
        }
    )
    assert call.outputs == (CallOutput("X"), CallOutput("Y", is_binary=True), CallOutput("Z", 3))
    assert call.is_binary_by_default


def test_parameters() -> None:
    call = parse(
        {
            "inputs": [JSON_INPUT],
            "parameters": {
                "sequence_id": 7,
                "sequence_start": True,
                "priority": 2,
                "timeout": 1000,
                "text": "a",
                "count": -1,
                "flag": True,
                "ratio": 0.5,
            },
        }
    )
    assert call.sequence == Sequence(7, True, False)
    assert (call.priority, call.timeout_us) == (2, 1000)
    assert call.parameters == {"text": "a", "count": -1, "flag": True, "ratio": 0.5}
    none = parse({"inputs": [JSON_INPUT], "parameters": {"sequence_id": ""}})
    assert none.sequence is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, 2.0**63),
        (-(2**63) - 1, -(2.0**63)),
        (2**64, 2.0**64),
        (10**400, 10**400),
    ],
)
def test_a_number_beyond_64_bits_is_a_double(given: int, expected: float) -> None:
    found = parse({"inputs": [JSON_INPUT], "parameters": {"a": given}}).parameters["a"]
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (b"{", "failed to parse the request JSON buffer: Expecting property name"),
        (b"\xff{}", "failed to parse the request JSON buffer: invalid start byte at 0"),
        (b"[]", "expected an object, got an array"),
        (b'{"inputs":' + b"[" * 200_000, "nested too deeply"),
        (b'{"inputs":[' + b"9" * 5000 + b"]}", "failed to parse the request JSON buffer"),
        ({}, "attempt to access non-existing object member 'inputs'"),
        (
            {"inputs": 1},
            "Unable to parse 'inputs': attempt to access JSON non-array as array: got an integer",
        ),
        ({"inputs": [1]}, "Unable to parse 'inputs': expected objects, got an integer"),
        (
            {"inputs": [], "id": 1},
            "Unable to parse 'id': attempt to access JSON non-string as string",
        ),
        (
            {"inputs": [], "parameters": []},
            "Unable to parse 'parameters': attempt to access JSON non-object as object",
        ),
        ({"inputs": [], "parameters": {"x": None}}, "'x' has invalid type"),
        ({"inputs": [], "parameters": {"x": [1]}}, "'x' has invalid type"),
        ({"inputs": [], "parameters": {"triton_x": 1}}, "keys starting with 'triton_'"),
        (
            {"inputs": [], "parameters": {"priority": -1}},
            "non-unsigned-integer as unsigned-integer: got an integer -1, expected 0 to"
            " 18446744073709551615",
        ),
        (
            {"inputs": [], "parameters": {"priority": 1 << 64}},
            "got an integer 18446744073709551616, expected 0 to 18446744073709551615",
        ),
        (
            {"inputs": [], "parameters": {"timeout": -1}},
            "'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer: got an"
            " integer -1, expected 0 to 31536000000000",
        ),
        (
            with_input(data=..., parameters={"binary_data_size": -1}),
            "got an integer -1, expected 0 to 18446744073709551615",
        ),
        (
            {"inputs": [], "parameters": {"timeout": "1"}},
            "non-unsigned-integer as unsigned-integer",
        ),
        ({"inputs": [], "parameters": {"sequence_end": 1}}, "non-boolean as boolean"),
        ({"inputs": [], "outputs": [1]}, "Unable to parse 'outputs'"),
        ({"inputs": [], "outputs": [{}]}, "non-existing object member 'name'"),
        (with_input(name=...), "non-existing object member 'name'"),
        (b'{"inputs":[],"id":"\\ud800"}', "a string is not Unicode"),
        (b'{"inputs":[],"parameters":{"\\uDfff":1}}', "a string is not Unicode"),
        (with_input(shape=...), "Unable to parse 'shape'"),
        (with_input(shape=[-1]), "non-unsigned-integer as unsigned-integer: -1"),
        (with_input(shape=[1.0]), "non-unsigned-integer"),
        (with_input(shape=[True]), "non-unsigned-integer"),
        (with_input(shape=[1 << 63]), "non-unsigned-integer"),
        (with_input(datatype="FLOAT32"), "invalid datatype for input A"),
        (with_input(data=...), "Input must set only one of the following fields"),
        (with_input(parameters={"binary_data_size": 8}), "Input must set only one"),
        (
            with_input(data=5),
            "Unable to parse 'data': attempt to access JSON non-array as array: got an integer",
        ),
        (with_input(data=[1]), "Shape does not match true shape of 'data' field"),
        (with_input(data=[1, 2.0]), "expected integers, got a number: 2.0"),
        (with_input(data=[1, True]), "expected integers, got a boolean"),
        (with_input(data=[1, 1 << 31]), "expected -2147483648 to 2147483647, got 2147483648"),
        (with_input(data=[[1], 2]), "mixes arrays and values"),
        (with_input(datatype="BOOL"), "expected true or false, got an integer"),
        (with_input(datatype="FP16"), "receiving FP16 data via JSON is not supported"),
        (with_input(datatype="BYTES"), "expected strings, got an integer"),
        (with_input(datatype="BYTES", data=["a", "\ud800"]), "not Unicode"),
        (with_input(datatype="FP64", data=[1, 10**400]), "an integer too large for FP64"),
        (
            with_input(data=..., parameters={"shared_memory_region": "r"}),
            "'shared_memory_byte_size' is missing",
        ),
    ],
)
def test_refusals(request_: dict[str, Any] | bytes, text: str) -> None:
    assert text in refused(request_)


def test_data_may_be_nested_in_any_even_way_but_not_too_deep() -> None:
    deep: Any = [1, 2]
    for _ in range(99):
        deep = [deep]
    assert parse(with_input(data=deep)).inputs[0].data == struct.pack("<2i", 1, 2)
    assert "at most 100 levels" in refused(with_input(data=[deep]))


def test_an_output_in_shared_memory_is_neither_binary_nor_classified() -> None:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    for other in ({"binary_data": True}, {"classification": 1}):
        output = {"name": "O", "parameters": place | other}
        assert "Output can't set both" in refused({"inputs": [], "outputs": [output]})


def test_too_few_and_too_many_bytes() -> None:
    assert "expecting 3 additional bytes for model 'm'" in refused({"inputs": [BINARY]}, b"12345")
    assert "unexpected additional input data for model 'm': 1" in refused(
        {"inputs": [BINARY]}, b"123456789"
    )


def test_limits_name_their_flag() -> None:
    big = with_input(shape=[100], data=[0] * 100)
    assert "--http-max-input-size" in refused(big, limit=399)
    containers = b'{"inputs":[' + b"[]," * (1 << 20) + b"[]]}"
    assert "arrays and objects" in refused(containers)


@pytest.mark.parametrize("header", ["", "-1", "x", "1.0", "99999999999", "11", "²"])
def test_bad_header(header: str) -> None:
    with pytest.raises(RequestError, match="Inference-Header-Content-Length"):
        json_length(header, 10, LIMIT)


def test_header() -> None:
    assert json_length(None, 10, LIMIT) == 10
    assert json_length(" 4 ", 10, LIMIT) == 4
    assert json_length("0", 10, LIMIT) == 0
    assert json_length(None, 0, LIMIT) == 0
    with pytest.raises(RequestError, match="--http-max-input-size"):
        json_length("0", LIMIT + 1, LIMIT)
    assert json_length("4", LIMIT + 1, LIMIT) == 4  # the binary part has no limit of its own


def config(data_type: str, dims: list[int], max_batch_size: int = 0) -> dict[str, Any]:
    one = {"name": "A", "data_type": data_type, "dims": dims}
    return {"input": [one], "max_batch_size": max_batch_size}


def test_raw_request() -> None:
    call = raw_call("m", 1, b"12345678", config("TYPE_FP32", [2]))
    assert call == InferCall(
        "m", 1, "", (CallInput("A", "FP32", (2,), b"12345678"),), is_binary_by_default=True
    )
    shape = raw_call("m", 1, b"12345678", config("TYPE_FP32", [1, -1], 4)).inputs[0].shape
    assert shape == (1, 1, 2)
    text = raw_call("m", 1, b"hello", config("TYPE_STRING", [-1], 4)).inputs[0]
    assert text == CallInput("A", "BYTES", (1, 1), b"\5\0\0\0hello")


def test_raw_request_that_cannot_be_deduced() -> None:
    for wrong, text in (
        ({"input": []}, "must only have 1 input"),
        (config("TYPE_FP32", [-1, -1]), "more than one variable-sized dimension"),
        (config("TYPE_STRING", [2]), r"must have input shape \[1\]"),
    ):
        with pytest.raises(RequestError, match=text):
            raw_call("m", 1, b"1234", wrong)

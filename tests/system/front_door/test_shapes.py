"""Tensors at the edge of what there is, through HTTP and gRPC: empty, scalar, impossible, twice."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from support.front_door import (
    Door,
    Given,
    GrpcDoor,
    HttpDoor,
    Refused,
    grpc_request,
    grpc_tensors,
)

ONE = Given("INPUT0", "FP32", [1], struct.pack("<f", 1))
SIXTEEN = np.arange(16, dtype="<f4").tobytes()
PAIR = [Given(name, "FP32", [16], SIXTEEN) for name in ("INPUT0", "INPUT1")]


def still_answers(door: Door) -> None:
    assert door.infer("fp32", [ONE])["OUTPUT0"].data == ONE.data


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("fp32", [-1]),
        ("matrix", [-1, 8]),
        ("matrix", [-1, -8]),
        ("rows", [-1, 8]),
        ("rows", [1, -8]),
    ],
)
def test_a_negative_dimension_is_refused_with_the_input_named(
    door: Door, model: str, shape: list[int]
) -> None:
    datatype = "FP32" if model == "fp32" else "FP16"
    with pytest.raises(Refused, match="'INPUT0'") as caught:
        door.infer(model, [Given("INPUT0", datatype, shape, bytes(16))])
    assert caught.value.code == "INVALID_ARGUMENT"
    still_answers(door)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [([1 << 20, 1 << 19], 2**40), ([1 << 62, 1 << 62], 2**125), ([2**63 - 1, 2], 4 * (2**63 - 1))],
)
def test_a_shape_beyond_all_memory_with_a_small_body_is_refused_with_both_sizes(
    door: Door, shape: list[int], expected: int
) -> None:
    with pytest.raises(Refused, match=f"{expected}.* 16") as caught:
        door.infer("matrix", [Given("INPUT0", "FP16", shape, bytes(16))])
    assert caught.value.code == "INVALID_ARGUMENT"
    still_answers(door)


@pytest.mark.parametrize(
    ("model", "datatype", "shape"),
    [
        ("fp16", "FP16", [0]),
        ("matrix", "FP16", [2, 0]),
        ("matrix", "FP16", [1, 0]),
        ("rows", "FP16", [2, 0]),
        ("rows", "FP16", [1, 0]),
        ("bytes", "BYTES", [0]),
    ],
)
def test_an_empty_tensor_is_executed_and_comes_back_empty(
    door: Door, model: str, datatype: str, shape: list[int]
) -> None:
    found = door.infer(model, [Given("INPUT0", datatype, shape, b"")])["OUTPUT0"]
    assert (found.datatype, found.shape, found.data) == (datatype, shape, b"")


def test_an_empty_tensor_as_json_comes_back_as_json(http: HttpDoor) -> None:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [0], "data": []}
    (output,) = http.ask("POST", "/v2/models/fp32/infer", {"inputs": [tensor]})["outputs"]
    assert output == {"name": "OUTPUT0", "datatype": "FP32", "shape": [0], "data": []}


def test_a_value_that_the_model_sees_as_a_scalar_is_not_lost(door: Door, http: HttpDoor) -> None:
    value = struct.pack("<f", 3.5)
    found = door.infer("scalar", [Given("INPUT0", "FP32", [1, 1], value)])["OUTPUT0"]
    assert (found.shape, found.data) == ([1, 1], value)
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [3.5]}
    answer = http.ask("POST", "/v2/models/scalar/infer", {"inputs": [tensor]})
    assert answer["outputs"][0]["data"] == [3.5]


@pytest.mark.parametrize("model", ["scalar", "fp32"])
def test_a_shape_without_dimensions_is_refused_where_there_must_be_some(
    door: Door, model: str
) -> None:
    with pytest.raises(Refused, match="'INPUT0'") as caught:
        door.infer(model, [Given("INPUT0", "FP32", [], struct.pack("<f", 3.5))])
    assert caught.value.code == "INVALID_ARGUMENT"


def test_an_input_named_twice_is_refused(door: Door) -> None:
    for model, inputs in (("add_sub", [PAIR[0], PAIR[0]]), ("fp32", [ONE, ONE])):
        with pytest.raises(Refused, match="'INPUT0' already exists in request") as caught:
            door.infer(model, inputs)
        assert caught.value.code == "INVALID_ARGUMENT"


def test_an_output_named_twice_is_refused(door: Door) -> None:
    with pytest.raises(Refused, match="'OUTPUT1' already exists in request") as caught:
        door.infer("add_sub", PAIR, ["OUTPUT1", "OUTPUT1"])
    assert caught.value.code == "INVALID_ARGUMENT"


def test_sixty_four_megabytes_travel_without_any_setting(door: Door) -> None:
    values = np.arange(16 * 2**20, dtype="<f4")
    found = door.infer("fp32", [Given("INPUT0", "FP32", [len(values)], values.tobytes())])
    assert np.array_equal(np.frombuffer(found["OUTPUT0"].data, "<f4"), values)


def test_answers_are_raw_over_grpc_even_to_typed_requests(grpc_door: GrpcDoor) -> None:
    message = grpc_request("fp32", [ONE])
    del message.raw_input_contents[:]
    message.inputs[0].contents.fp32_contents.append(1)

    answer = grpc_door.ask("ModelInfer", message)

    assert grpc_tensors(answer)["OUTPUT0"].data == ONE.data
    assert not answer.outputs[0].HasField("contents")


def test_raw_and_typed_contents_in_one_request_are_refused(grpc_door: GrpcDoor) -> None:
    message = grpc_request("fp32", [ONE])
    message.inputs[0].contents.fp32_contents.append(1)

    with pytest.raises(Refused, match="contents") as caught:
        grpc_door.ask("ModelInfer", message)

    assert caught.value.code == "INVALID_ARGUMENT"

"""ModelInferRequest to InferCall: what stock clients send, and every way to get it wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferRequestedOutput, service_pb2
from tritonclient.grpc._utils import _get_inference_request

from naiad.gateway.calls import CallInput, CallOutput, RegionPart
from naiad.gateway.grpc_codec import wire
from naiad.gateway.grpc_codec.requests import decoded_request, version_number
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import Sequence

Request = service_pb2.ModelInferRequest


def request(*inputs: dict[str, Any], **fields: Any) -> Any:
    """A message with inputs; "x" FP32 [2] where a field is not given."""
    message = Request(model_name="m", **fields)
    for one in inputs:
        message.inputs.add(**{"name": "x", "datatype": "FP32", "shape": [2], **one})
    return message


def decoded(message: Any) -> Any:
    return decoded_request(message.SerializeToString())


def refusal(message: Any) -> str:
    with pytest.raises(RequestError) as caught:
        decoded(message)
    return caught.value.message


RAW = np.array([1, 2], "<f4").tobytes()


def test_what_a_stock_client_sends() -> None:
    tensor = InferInput("x", [1, 2], "FP32").set_data_from_numpy(np.ones((1, 2), np.float32))
    shared = InferInput("y", [4], "INT8")
    shared.set_shared_memory("region", 4, offset=8)
    top = InferRequestedOutput("top", class_count=3)
    out = InferRequestedOutput("out")
    out.set_shared_memory("region", 16)
    message = _get_inference_request(
        inputs=[tensor, shared],
        model_name="m",
        model_version="3",
        request_id="r1",
        outputs=[top, out],
        sequence_id=7,
        sequence_start=True,
        sequence_end=False,
        priority=2,
        timeout=1500,
        parameters={"note": "x", "n": 5, "f": True},
    )

    call = decoded(message)

    assert call.model == "m"
    assert call.version == 3
    assert call.id == "r1"
    assert call.inputs == (
        CallInput("x", "FP32", (1, 2), np.ones(2, "<f4").tobytes()),
        CallInput("y", "INT8", (4,), RegionPart("region", 8, 4)),
    )
    assert call.outputs == (
        CallOutput("top", 3, None, True),
        CallOutput("out", 0, RegionPart("region", 0, 16), True),
    )
    assert call.sequence == Sequence(7, True, False)
    assert call.priority == 2
    assert call.timeout_us == 1500
    assert call.parameters == {"note": "x", "n": 5, "f": True}
    assert call.is_binary_by_default


@pytest.mark.parametrize(
    ("datatype", "field", "values", "dtype"),
    [
        ("BOOL", "bool_contents", [True, False], "?"),
        ("INT8", "int_contents", [-128, 127], "<i1"),
        ("INT16", "int_contents", [-(2**15), 2**15 - 1], "<i2"),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1], "<i4"),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1], "<i8"),
        ("UINT8", "uint_contents", [0, 255], "<u1"),
        ("UINT16", "uint_contents", [0, 2**16 - 1], "<u2"),
        ("UINT32", "uint_contents", [0, 2**32 - 1], "<u4"),
        ("UINT64", "uint64_contents", [0, 2**64 - 1], "<u8"),
        ("FP32", "fp32_contents", [1.5, float("-inf")], "<f4"),
        ("FP64", "fp64_contents", [1e300, -0.0], "<f8"),
    ],
)
def test_typed_contents(datatype: str, field: str, values: list[Any], dtype: str) -> None:
    message = request({"datatype": datatype, "contents": {field: values}})

    (tensor,) = decoded(message).inputs

    assert tensor.data == np.array(values, dtype).tobytes()


def test_typed_strings() -> None:
    message = request({"datatype": "BYTES", "contents": {"bytes_contents": [b"ab", b"", b"\0"]}})

    (tensor,) = decoded(message).inputs

    assert tensor.data == b"\2\0\0\0ab\0\0\0\0\1\0\0\0\0"


def test_empty_contents_are_a_tensor_of_no_elements() -> None:
    (tensor,) = decoded(request({"shape": [0], "contents": {}})).inputs

    assert tensor.data == b""


def test_raw_contents_go_to_the_inputs_that_are_not_in_shared_memory() -> None:
    region: dict[str, Any] = {
        "shared_memory_region": {"string_param": "r"},
        "shared_memory_byte_size": {"int64_param": 8},
    }
    message = request(
        {"name": "a"}, {"name": "b"}, {"name": "c"}, raw_input_contents=[b"11111111", b"22222222"]
    )
    for name, value in region.items():
        message.inputs[1].parameters[name].MergeFrom(service_pb2.InferParameter(**value))

    data = [tensor.data for tensor in decoded(message).inputs]

    assert data == [b"11111111", RegionPart("r", 0, 8), b"22222222"]


def test_more_raw_contents_than_inputs_are_ignored_as_in_triton() -> None:
    assert len(decoded(request({}, raw_input_contents=[RAW, RAW])).inputs) == 1


def test_large_raw_contents_are_views_of_what_came() -> None:
    large = bytes(range(256)) * 512
    message = request(
        {"name": "a", "datatype": "UINT8", "shape": [len(large)]},
        {"name": "b"},
        raw_input_contents=[large, RAW],
        id="r",
        parameters={"k": service_pb2.InferParameter(string_param="v")},
    )
    data = message.SerializeToString()

    call = decoded_request(data)

    views: list[Any] = [tensor.data for tensor in call.inputs]
    assert [bytes(view) for view in views] == [large, RAW]
    assert [view.obj is data for view in views] == [True, True]
    assert (call.id, call.parameters) == ("r", {"k": "v"})


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (request({}), "unable to find data for input tensor 'x' for model 'm' in request."),
        (
            request({}, {"name": "y"}, raw_input_contents=[RAW]),
            "unable to find data for input tensor 'y'",
        ),
        (
            request({"contents": {"fp32_contents": [1, 2]}}, raw_input_contents=[RAW]),
            "contents field must not be specified when using raw_input_contents for 'x'",
        ),
        (
            request({"contents": {"int_contents": [1, 2]}}),
            "unexpected explicit tensor data for input tensor 'x' for model 'm'",
        ),
        (
            request({"contents": {"int_contents": [1], "fp32_contents": [1, 2]}}),
            "unexpected explicit tensor data for input tensor 'x' for model 'm'",
        ),
        (
            request({"datatype": "INT8", "contents": {"int_contents": [1, 128]}}),
            "int_contents has a number that is no INT8",
        ),
        (request({"datatype": "FP16", "contents": {"fp32_contents": [1]}}), "raw_input_contents"),
        (request({"datatype": "FLOAT", "contents": {"fp32_contents": [1]}}), "invalid datatype"),
        (request(model_version="1x"), "failed to get model version from specified version string"),
    ],
)
def test_a_message_that_no_server_can_read(message: Any, text: str) -> None:
    assert text in refusal(message)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("sequence_id", {"bool_param": True}, "int64_param or string_param"),
        ("sequence_start", {"int64_param": 1}, "bool_param"),
        ("sequence_end", {"string_param": "true"}, "bool_param"),
        ("priority", {"string_param": "1"}, "int64_param or uint64_param"),
        ("timeout", {"double_param": 1.0}, "int64_param"),
        ("triton_enable_empty_final_response", {"int64_param": 1}, "bool_param"),
        ("mine", {}, "one of its fields"),
    ],
)
def test_a_parameter_in_the_wrong_field(name: str, value: dict[str, Any], expected: str) -> None:
    message = request({}, raw_input_contents=[RAW])
    message.parameters[name].MergeFrom(service_pb2.InferParameter(**value))

    text = refusal(message)

    assert f"invalid value type for '{name}' parameter, expected {expected}" in text


def test_reserved_parameters() -> None:
    message = request({}, raw_input_contents=[RAW])
    message.parameters["triton_final_response"].bool_param = True

    assert "reserved" in refusal(message)


def test_the_wish_for_an_empty_end_is_no_parameter_of_the_model() -> None:
    message = request({}, raw_input_contents=[RAW])
    message.parameters["triton_enable_empty_final_response"].bool_param = True

    assert decoded(message).parameters == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"int64_param": 0}, None),
        ({"string_param": ""}, None),
        ({"string_param": "s"}, Sequence("s", False, True)),
        ({"int64_param": -1}, Sequence(2**64 - 1, False, True)),
    ],
)
def test_sequence_ids(value: dict[str, Any], expected: Sequence | None) -> None:
    message = request({}, raw_input_contents=[RAW])
    message.parameters["sequence_id"].MergeFrom(service_pb2.InferParameter(**value))
    message.parameters["sequence_end"].bool_param = True

    assert decoded(message).sequence == expected


def output_with(**parameters: dict[str, Any]) -> Any:
    message = request({}, raw_input_contents=[RAW])
    output = message.outputs.add(name="out")
    for name, value in parameters.items():
        output.parameters[name].MergeFrom(service_pb2.InferParameter(**value))
    return message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (output_with(classification={"int64_param": 0}), "at least 1"),
        (output_with(classification={"string_param": "2"}), "expected int64_param"),
        (output_with(shared_memory_region={"int64_param": 1}), "expected string_param"),
        (output_with(shared_memory_region={"string_param": "r"}), "byte_size' is missing"),
        (
            output_with(
                shared_memory_region={"string_param": "r"},
                shared_memory_byte_size={"int64_param": -8},
            ),
            "at least 0, got -8",
        ),
        (
            output_with(
                shared_memory_region={"string_param": "r"},
                shared_memory_byte_size={"int64_param": 8},
                classification={"int64_param": 2},
            ),
            "can set only one of",
        ),
    ],
)
def test_outputs_that_cannot_be(message: Any, text: str) -> None:
    assert text in refusal(message)


def test_forwarded_headers_join_the_parameters_unless_they_are_given_twice() -> None:
    message = request({}, raw_input_contents=[RAW])
    message.parameters["mine"].int64_param = 1
    data = message.SerializeToString()

    call = decoded_request(data, {"x-user": "u"})

    assert call.parameters == {"mine": 1, "x-user": "u"}
    with pytest.raises(RequestError, match="forwarded header"):
        decoded_request(data, {"mine": "2"})


@pytest.mark.parametrize(
    ("text", "number"), [("", -1), ("0", 0), ("7", 7), (str(2**63 - 1), 2**63 - 1)]
)
def test_versions(text: str, number: int) -> None:
    assert version_number(text) == number


@pytest.mark.parametrize("text", ["-1", "1.0", " 1", "x", "١", str(2**63), "9" * 5000])
def test_versions_that_are_none(text: str) -> None:
    with pytest.raises(RequestError, match="failed to get model version"):
        version_number(text)


# --- bytes that are no message ------------------------------------------------------------------


def test_too_many_fields_of_a_large_message() -> None:
    data = b"\x3a\x00" * (wire.FIELDS_MAX + 1 + 16 * 1024)

    with pytest.raises(RequestError, match="more than 4096"):
        decoded_request(data)


def test_too_much_beside_raw_contents() -> None:
    count = wire.STRUCTURE_BYTES_MAX // 8 + 1
    message = request({"datatype": "FP64", "contents": {"fp64_contents": [0.5] * count}})

    assert "send large tensors as raw_input_contents" in refusal(message)


LARGE = request(
    {"datatype": "UINT8", "shape": [20_000]}, raw_input_contents=[bytes(20_000)], id="i"
).SerializeToString()


@given(st.data())
def test_a_cut_is_the_whole_or_refused(data: st.DataObject) -> None:
    """Whatever was done to a large message: the same as the library finds, or a refusal."""
    changed = bytearray(LARGE)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.sampled_from([*range(80), *range(len(LARGE) - 40, len(LARGE))]))
        changed[position] = data.draw(st.integers(0, 255))
    mutated = bytes(changed[: data.draw(st.sampled_from([len(LARGE), len(LARGE) - 7, 16_400]))])
    try:
        message, raw = wire.parsed_request(mutated)
    except RequestError:
        return
    whole = Request.FromString(mutated)
    assert [bytes(one) for one in raw] == list(whole.raw_input_contents)
    del whole.raw_input_contents[:]
    assert message.SerializeToString(deterministic=True) == whole.SerializeToString(
        deterministic=True
    )


@given(st.binary(max_size=300))
def test_any_bytes_give_a_call_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        assert isinstance(decoded_request(data).id, str)


@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("timeout", {"int64_param": -1}, 31536000000000),
        ("timeout", {"int64_param": 2**62}, 31536000000000),
        ("priority", {"int64_param": -1}, 2**64 - 1),
    ],
)
def test_a_number_out_of_range_is_named_as_its_user_wrote_it(
    name: str, value: dict[str, int], most: int
) -> None:
    message = request({}, raw_input_contents=[RAW])
    message.parameters[name].MergeFrom(service_pb2.InferParameter(**value))

    given = value["int64_param"]
    assert f"'{name}' parameter, expected 0 to {most}, got {given}" in refusal(message)

"""naiad and a real Triton answer the same gRPC messages with the same messages.

Needs --triton-command. What differs on purpose names its row in docs/compatibility.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from support.stock_server import Stock

ROWS: Final = (Path(__file__).parents[3] / "docs" / "compatibility.md").read_text()
PREFIX: Final = re.compile(r"^\[request id: [^\]]*\] ")
SERVICE: Final = "/inference.GRPCInferenceService/"
SECONDS_MAX: Final = 20
ONES: Final = np.ones(16, "<f4").tobytes()

Message = Any
Outcome = tuple[str, Any]
"""A status and the message, or the status and its text."""


def request(model: str = "identity", **fields: Any) -> Message:
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=[ONES], **fields)
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    return message


def with_parameter(name: str, **value: Any) -> Message:
    message = request(id="p")
    message.parameters[name].CopyFrom(pb.InferParameter(**value))
    return message


def with_class_count(count: int) -> Message:
    message = request()
    output = message.outputs.add(name="OUTPUT0")
    output.parameters["classification"].int64_param = count
    return message


def typed() -> Message:
    message = request()
    message.ClearField("raw_input_contents")
    message.inputs[0].contents.fp32_contents.extend([1] * 16)
    return message


def both_forms() -> Message:
    message = request()
    message.inputs[0].contents.fp32_contents.extend([1] * 16)
    return message


def without_data() -> Message:
    message = request()
    message.ClearField("raw_input_contents")
    return message


def of_shape(*shape: int) -> Message:
    message = request()
    message.inputs[0].shape[:] = shape
    return message


EMPTY_FINAL: Final = "triton_enable_empty_final_response"
REQUESTS: Final[dict[str, tuple[Message, str]]] = {
    "plain": (request(), ""),
    "with an id": (request(id="mine"), ""),
    "of a version": (request("tuned", model_version="3"), ""),
    "typed": (typed(), ""),
    "both forms": (both_forms(), ""),
    "without data": (without_data(), ""),
    "another shape": (of_shape(1, 15), ""),
    "too large a batch": (of_shape(9, 16), ""),
    "unknown model": (request("nobody", id="n"), ""),
    "unknown version": (request(model_version="9"), ""),
    "no version at all": (request(model_version="x"), "the text about a version"),
    "classes": (with_class_count(2), ""),
    "no classes": (with_class_count(0), "the text about a version"),
    "priority": (with_parameter("priority", uint64_param=1), ""),
    "timeout": (with_parameter("timeout", int64_param=1_000_000), ""),
    "timeout as text": (with_parameter("timeout", string_param="1"), ""),
    "parameter": (with_parameter("mine", string_param="x"), ""),
    "reserved parameter": (with_parameter("triton_mine", bool_param=True), ""),
    "empty final response": (with_parameter(EMPTY_FINAL, bool_param=True), ""),
    "model's error": (with_parameter("raise", string_param="as asked"), ""),
    "sequence": (with_parameter("sequence_id", int64_param=5), "`sequence_id`"),
}


def unary(server: Stock, message: Message) -> Outcome:
    with grpc.insecure_channel(server.grpc) as channel:
        call: Any = channel.unary_unary(
            f"{SERVICE}ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        try:
            return "OK", call(message, timeout=SECONDS_MAX)
        except grpc.RpcError as raised:
            fault: Any = raised
            return fault.code().name, PREFIX.sub("", fault.details())


def streamed(server: Stock, *messages: Message) -> list[Message]:
    with grpc.insecure_channel(server.grpc) as channel:
        call: Any = channel.stream_stream(
            f"{SERVICE}ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        return list(call(iter(messages), timeout=SECONDS_MAX))


def same_text(ours: str, theirs: str) -> bool:
    """Detail may stand behind Triton's text."""
    return ours.startswith(theirs.rstrip(" ."))


@pytest.mark.parametrize("name", REQUESTS)
def test_inference(naiad: Stock, triton: Stock, name: str) -> None:
    message, row = REQUESTS[name]
    ours, theirs = unary(naiad, message), unary(triton, message)
    is_same = ours == theirs
    if ours[0] == theirs[0] != "OK":
        is_same = same_text(ours[1], theirs[1])
    assert is_same is not bool(row), f"{ours}, Triton {theirs}"
    assert row in ROWS


@pytest.mark.parametrize("name", [name for name, (_, row) in REQUESTS.items() if not row])
def test_a_stream(naiad: Stock, triton: Stock, name: str) -> None:
    """Items and their marks; those around an error too."""
    messages = (request(id="before"), REQUESTS[name][0], request(id="after"))
    ours, theirs = streamed(naiad, *messages), streamed(triton, *messages)
    assert len(ours) == len(theirs), f"{ours}, Triton {theirs}"
    for mine, other in zip(ours, theirs, strict=True):
        said = PREFIX.sub("", mine.error_message), PREFIX.sub("", other.error_message)
        assert bool(said[0]) is bool(said[1])
        assert same_text(*said)
        assert mine.infer_response == other.infer_response

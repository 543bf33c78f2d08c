"""BYTES tensors through both doors: byte for byte, or refused before a model sees them."""

from __future__ import annotations

from struct import pack

import pytest

from support.front_door import Door, Given, GrpcDoor, HttpDoor, Refused, grpc_request, grpc_tensors

TEXTS = ["", "a\0b", "tail\0\0", "\0", "😀", "é" * 1000]
AWKWARD = [*(text.encode() for text in TEXTS), b"\xff\xfe\x80"]


def packed(*elements: bytes) -> bytes:
    return b"".join(pack("<I", len(one)) + one for one in elements)


def test_awkward_elements_come_back_to_the_last_byte(door: Door) -> None:
    data = packed(*AWKWARD)
    found = door.infer("bytes", [Given("INPUT0", "BYTES", [len(AWKWARD)], data)])["OUTPUT0"]
    assert (found.shape, found.data) == ([len(AWKWARD)], data)


def test_awkward_elements_come_back_as_json(http: HttpDoor) -> None:
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}
    answer = http.ask("POST", "/v2/models/bytes/infer", {"inputs": [tensor]})
    assert answer["outputs"][0]["data"] == TEXTS


def test_awkward_elements_come_back_from_typed_contents(grpc_door: GrpcDoor) -> None:
    message = grpc_request("bytes", [Given("INPUT0", "BYTES", [len(AWKWARD)], b"")])
    del message.raw_input_contents[:]
    message.inputs[0].contents.bytes_contents.extend(AWKWARD)
    found = grpc_tensors(grpc_door.ask("ModelInfer", message))
    assert found["OUTPUT0"].data == packed(*AWKWARD)


def test_bytes_that_are_no_text_are_never_written_as_json(http: HttpDoor) -> None:
    body = packed(b"\xff\xfe")
    text = (
        b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],'
        b'"parameters":{"binary_data_size":%d}}]}' % len(body)
    )
    headers = {"Inference-Header-Content-Length": str(len(text))}
    reply = http.call("POST", "/v2/models/bytes/infer", text + body, headers)
    assert reply.status == 400
    assert "binary data" in reply.error


@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(pack("<I", 5) + b"abc", 1, id="the last length says more than is left"),
        pytest.param(b"\xff\xff\xff\xffabc", 1, id="a length of 4 GiB, or -1"),
        pytest.param(pack("<I", 1) + b"a" + b"\0\0\0", 2, id="a cut length"),
        pytest.param(packed(b"a", b"b"), 1, id="more elements than the shape"),
        pytest.param(packed(b"a"), 2, id="fewer elements than the shape"),
        pytest.param(packed(b"a") + b"x", 1, id="a byte after the last"),
        pytest.param(b"", 1, id="nothing for one element"),
        pytest.param(b"\0\0\0\0", 0, id="something for no element"),
        pytest.param(bytes(16), 1 << 61, id="2**61 elements"),
    ],
)
def test_malformed_elements_are_refused_with_the_input_named(
    door: Door, data: bytes, count: int
) -> None:
    with pytest.raises(Refused, match="'INPUT0'") as caught:
        door.infer("bytes", [Given("INPUT0", "BYTES", [count], data)])
    assert caught.value.code == "INVALID_ARGUMENT"


def test_strings_of_three_dimensions_arrive_in_row_major_order(door: Door, http: HttpDoor) -> None:
    words = ["a", "bb", "ccc", "dddd", "é", "f", "", "\0"]
    given = Given("INPUT0", "FP32", [1], bytes(4))
    found = door.infer("cube", [given])["OUTPUT0"]
    assert (found.shape, found.data) == ([2, 2, 2], packed(*(word.encode() for word in words)))
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [0]}
    answer = http.ask("POST", "/v2/models/cube/infer", {"inputs": [tensor]})
    assert answer["outputs"][0]["data"] == words

"""BYTES tensors: exactly the bytes that were sent come back, and malformed ones reach no model."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

import numpy as np
import pytest

from naiad.client import Client, InferInput, RequestError
from naiad.testing.server import Server, serve
from support.models import add_echo, add_onnx_echo, add_python
from support.models_python import ECHO, python_model

pytestmark = pytest.mark.usefixtures("unharmed")

MODELS = ("echo", "python", "onnx")
AWKWARD = [
    b"",
    b"a\0b",
    b"tail\0\0",
    b"\0",
    "😀".encode(),
    b"\xff\xfe\x80",
    "ä".encode() * 30_000,
]
"""Together too large to travel inside a message."""
NO_BATCHES = """
input { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] }
"""
MANY_TYPES = python_model(
    """
    values = {
        "object": np.array([b"tail\\0", "\\u00e4", b""], dtype=object),
        "bytes_": np.array([b"ab", b"c", b""]),
        "str_": np.array(["\\U0001f600", "c", ""]),
        "numbers": np.array([1, 2, 3], dtype=object),
    }
    return [output(values[array_of(request)[0].decode()]) for request in requests]
    """
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo", "BYTES -1")
    add_echo(repository, "echo_matrix", "BYTES 2 3")
    add_python(repository, "python", ECHO, ["INPUT0 BYTES -1"], ["OUTPUT0 BYTES -1"])
    add_python(repository, "types", MANY_TYPES, ["INPUT0 BYTES 1"], ["OUTPUT0 BYTES 3"])
    add_onnx_echo(repository, "onnx", "BYTES", ("n",), NO_BATCHES)
    with serve(repository, arguments=["--spares", "0"]) as server:
        yield server


def sent(data: bytes, count: int) -> list[InferInput]:
    return [InferInput("INPUT0", "BYTES", (count,), data)]


@pytest.mark.parametrize("model", ["echo", "python"])
def test_awkward_elements_come_back_to_the_last_byte(client: Client, model: str) -> None:
    array = np.array(AWKWARD, dtype=object)
    result = client.infer(model, {"INPUT0": array})
    assert result["OUTPUT0"].tolist() == AWKWARD
    assert bytes(result.outputs[0].data) == b"".join(pack("<I", len(a)) + a for a in AWKWARD)


def test_text_comes_back_through_an_onnx_model(client: Client) -> None:
    texts = ["", "plain", "😀", "ä" * 30_000]
    result = client.infer("onnx", {"INPUT0": np.array(texts, dtype=object)})
    assert [item.decode() for item in result["OUTPUT0"].tolist()] == texts


@pytest.mark.parametrize("model", MODELS)
def test_a_tensor_of_no_strings_is_legal(client: Client, model: str) -> None:
    assert client.infer(model, sent(b"", 0))["OUTPUT0"].shape == (0,)


def test_a_matrix_of_strings_is_in_row_major_order(client: Client) -> None:
    array = np.array([["a", "bb", ""], ["c", "", "ddd"]], dtype=object)
    found = client.infer("echo_matrix", {"INPUT0": array})["OUTPUT0"]
    assert found.tolist() == [[b"a", b"bb", b""], [b"c", b"", b"ddd"]]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(pack("<I", 5) + b"abc", 1, id="the last length says more than is left"),
        pytest.param(b"\xff\xff\xff\xffabc", 1, id="a length of 4 GiB, or -1"),
        pytest.param(pack("<I", 1) + b"a" + b"\0\0\0", 2, id="a cut length"),
        pytest.param((pack("<I", 1) + b"a") * 2, 1, id="more elements than the shape"),
        pytest.param(pack("<I", 8) + bytes(8), 2, id="fewer elements than the shape"),
        pytest.param(pack("<I", 1) + b"a" + b"x", 1, id="a byte after the last"),
        pytest.param(b"", 1, id="nothing for one element"),
        pytest.param(b"\0\0\0\0", 0, id="something for no element"),
        pytest.param(bytes(16), 1 << 61, id="2**61 elements"),
    ],
)
def test_malformed_bytes_are_refused_before_the_model_sees_them(
    client: Client, model: str, data: bytes, count: int
) -> None:
    with pytest.raises(RequestError, match="'INPUT0'"):
        client.infer(model, sent(data, count))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("object", [b"tail\0", "ä".encode(), b""]),
        ("bytes_", [b"ab", b"c", b""]),
        ("str_", ["😀".encode(), b"c", b""]),
        ("numbers", [b"1", b"2", b"3"]),
    ],
)
def test_a_python_model_may_answer_with_any_kind_of_strings(
    client: Client, wanted: str, expected: list[bytes]
) -> None:
    result = client.infer("types", {"INPUT0": np.array([wanted], dtype=object)})
    assert result["OUTPUT0"].tolist() == expected

"""Tensors at the edge of what there is: empty, scalar, impossibly large, named twice.

Elsewhere such requests have killed servers, hung them, or lost data in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, InferInput, ModelError, RequestError
from naiad.testing.server import Server, serve
from support.models import add_echo, add_onnx_echo, add_python
from support.models_python import ADD_SUB, ECHO, python_model

pytestmark = pytest.mark.usefixtures("unharmed")

PAIR = ["0 FP32 16", "1 FP32 16"]
SCALAR_CONFIG = """
backend: "python" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
"""
SCALAR_SEEN = python_model(
    """
    assert all(array_of(request).ndim == 1 for request in requests), "not reshaped"
    return [output(array_of(request)) for request in requests]
    """
)
AS_LARGE_AS_ASKED = python_model(
    "return [output(np.zeros(int(array_of(request)[0]), np.float32)) for request in requests]"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo", "FP16 -1 -1")
    add_echo(repository, "echo_batched", "FP16 -1", max_batch_size=8)
    add_python(repository, "python", ECHO, ["INPUT0 FP32 -1 -1"], ["OUTPUT0 FP32 -1 -1"])
    add_onnx_echo(repository, "onnx", dims=("n", "m"))
    add_onnx_echo(repository, "onnx_scalar", dims=())
    directory = add_python(repository, "scalar", SCALAR_SEEN)
    (directory / "config.pbtxt").write_text(SCALAR_CONFIG)
    inputs, outputs = [f"INPUT{one}" for one in PAIR], [f"OUTPUT{one}" for one in PAIR]
    add_python(repository, "add_sub", ADD_SUB, inputs, outputs)
    add_python(repository, "large", AS_LARGE_AS_ASKED, ["INPUT0 INT64 1"], ["OUTPUT0 FP32 -1"])
    with serve(repository, arguments=["--spares", "0"]) as server:
        yield server


@pytest.mark.parametrize(
    ("model", "shape", "dtype"),
    [
        ("echo", (0, 0), np.float16),
        ("echo", (2, 0), np.float16),
        ("echo", (1, 0), np.float16),
        ("echo", (0, 3), np.float16),
        ("echo_batched", (1, 0), np.float16),
        ("echo_batched", (2, 0), np.float16),
        ("python", (0, 0), np.float32),
        ("python", (2, 0), np.float32),
        ("onnx", (1, 0), np.float32),
        ("onnx", (2, 0), np.float32),
    ],
)
def test_an_empty_tensor_is_executed_and_comes_back_empty(
    client: Client, model: str, shape: tuple[int, ...], dtype: Any
) -> None:
    result = client.infer(model, {"INPUT0": np.empty(shape, dtype)})["OUTPUT0"]
    assert result.shape == shape
    assert result.dtype == dtype


def test_a_batch_of_no_rows_is_refused_by_name(client: Client) -> None:
    with pytest.raises(RequestError, match=r"batch size 0 .*'echo_batched'.*expected 1 to 8"):
        client.infer("echo_batched", {"INPUT0": np.empty((0, 5), np.float16)})


def test_empty_and_full_requests_share_no_batch_and_keep_their_rows(client: Client) -> None:
    widths = [0, 3, 0, 5, 3, 0]
    futures = [
        client.submit("echo_batched", {"INPUT0": np.full((1, width), index, np.float16)})
        for index, width in enumerate(widths)
    ]
    for index, (width, future) in enumerate(zip(widths, futures, strict=True)):
        found = future.result(timeout=20)["OUTPUT0"]
        assert found.tolist() == [[index] * width]


def test_a_value_reshaped_to_a_scalar_is_not_lost(client: Client) -> None:
    assert client.infer("scalar", {"INPUT0": np.full((1, 1), 3.5, np.float32)})[
        "OUTPUT0"
    ].tolist() == [[3.5]]


def test_a_scalar_of_an_onnx_model_goes_as_one_element(client: Client) -> None:
    assert client.config("onnx_scalar")["input"][0]["dims"] == [1]
    result = client.infer("onnx_scalar", {"INPUT0": np.full(1, 3.5, np.float32)})
    assert result["OUTPUT0"].tolist() == [3.5]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("onnx_scalar", r"unexpected shape for input 'INPUT0'.*Expected \[1\], got \[\]"),
        ("scalar", "'INPUT0' has no shape but model requires batch dimension"),
    ],
)
def test_a_shape_without_dimensions_is_refused_where_there_must_be_some(
    client: Client, model: str, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        client.infer(model, {"INPUT0": np.float32(3.5)})


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1 << 20, 1 << 19), 2**40), ((1 << 62, 1 << 62), 2**125), ((2**63 - 1, 2), 4 * (2**63 - 1))],
)
def test_a_shape_of_a_tebibyte_with_a_small_body_is_refused_with_both_sizes(
    client: Client, shape: tuple[int, ...], expected: int
) -> None:
    with pytest.raises(RequestError, match=f"byte size mismatch.*Expected {expected}, got 16"):
        client.infer("echo", [InferInput("INPUT0", "FP16", shape, bytes(16))])


@pytest.mark.parametrize(
    ("model", "shape"),
    [("echo", (-1, 8)), ("echo", (-1, -8)), ("echo_batched", (-1, 8)), ("echo_batched", (1, -8))],
)
def test_a_negative_dimension_is_refused_by_name(
    client: Client, model: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(RequestError, match="dimensions should be specified for input 'INPUT0'"):
        client.infer(model, [InferInput("INPUT0", "FP16", shape, bytes(16))])


def test_an_answer_too_large_for_memory_fails_its_request_alone(client: Client) -> None:
    with pytest.raises(ModelError, match=r"MemoryError.*model\.py:\d+"):
        client.infer("large", {"INPUT0": np.array([1 << 46])})
    assert len(client.infer("large", {"INPUT0": np.array([7])})["OUTPUT0"]) == 7


def test_an_input_named_twice_is_refused(client: Client) -> None:
    one = InferInput("INPUT0", "FP32", (16,), bytes(64))
    with pytest.raises(RequestError, match="'INPUT0' already exists in request"):
        client.infer("add_sub", [one, one])
    with pytest.raises(RequestError, match="'INPUT0' already exists in request"):
        client.infer("python", [InferInput("INPUT0", "FP32", (1, 1), bytes(4))] * 2)


def test_an_output_named_twice_is_refused(client: Client) -> None:
    array = np.zeros(16, np.float32)
    with pytest.raises(RequestError, match="'OUTPUT1' already exists in request"):
        client.infer("add_sub", {"INPUT0": array, "INPUT1": array}, ["OUTPUT1", "OUTPUT1"])


@pytest.mark.parametrize(
    ("names", "outputs", "said"),
    [
        (["INPUT0"], None, r"expected 2 inputs but got 1.*missing required input.*'INPUT1'"),
        (["INPUT0", "INPUT2"], None, "unexpected inference input 'INPUT2' for model 'add_sub'"),
        (["INPUT0", "INPUT1", "INPUT2"], None, "expected 2 inputs but got 3"),
        (["INPUT0", "INPUT1"], ["OUTPUT9"], "unexpected inference output 'OUTPUT9'"),
    ],
)
def test_missing_and_unknown_names_are_named(
    client: Client, names: list[str], outputs: list[str] | None, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        client.infer("add_sub", {name: np.zeros(16, np.float32) for name in names}, outputs)


def test_a_wrong_datatype_is_refused_with_both_names(client: Client) -> None:
    arrays = {"INPUT0": np.zeros(16, np.float32), "INPUT1": np.zeros(16, np.int64)}
    with pytest.raises(RequestError, match=r"'INPUT1' data-type is 'INT64'.*expects 'FP32'"):
        client.infer("add_sub", arrays)


def test_only_the_requested_output_comes_back(client: Client) -> None:
    arrays = {"INPUT0": np.arange(16, dtype=np.float32), "INPUT1": np.ones(16, np.float32)}
    result = client.infer("add_sub", arrays, ["OUTPUT1"])
    assert result.names == ("OUTPUT1",)
    assert (result["OUTPUT1"] == arrays["INPUT0"] - 1).all()

"""What every backend does alike: one body over identity, onnxruntime and python.

Each serves OUTPUT0 = INPUT0 in the same configuration.
"""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.protocol.datatypes import CONFIG_NAME, NUMPY_NAME
from naiad.protocol.errors import NaiadError
from naiad.worker.backends.base import Backend
from naiad.worker.backends.registry import find_backend
from support.backend_requests import Array, Served, instance, objects, place
from support.onnx_models import write_echo

Serve = Callable[..., Served]

MODEL_PY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
                if tensor.triton_dtype() == 14:
                    output = pb_utils.Tensor.from_dlpack("OUTPUT0", tensor)
                else:
                    output = pb_utils.Tensor("OUTPUT0", tensor.as_numpy())
                responses.append(pb_utils.InferenceResponse([output]))
            return responses
"""

BOTH_WAYS = [*NUMPY_NAME, "BYTES", "BF16"]
SHAPES = [(1, 1), (3, 4), (1, 0), (2, 0), (2, 129)]


@pytest.fixture(params=["identity", "onnxruntime", "python"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(backend_name: str, tmp_path: Path) -> Serve:
    """serve(datatype, dims, max_batch_size=..., model_dims=...) → a loaded echo model."""

    def served(
        datatype: str,
        dims: list[int],
        *,
        max_batch_size: int = 8,
        reshape: list[int] | None = None,
    ) -> Served:
        if (backend_name, datatype) == ("onnxruntime", "BF16"):
            from onnxruntime import OrtValue

            if not hasattr(OrtValue, "ortvalue_from_numpy_with_onnx_type"):
                pytest.skip("this ONNX Runtime is older than 1.20")
        directory = tmp_path / "echo"
        seen = dims if reshape is None else reshape
        lead: list[Any] = ["n"] if max_batch_size else []
        free = [f"d{index}" if size == -1 else size for index, size in enumerate(seen)]
        if backend_name == "onnxruntime":
            write_echo(directory, datatype, lead + free)
        else:
            (directory / "1").mkdir(parents=True, exist_ok=True)
            (directory / "1" / "model.py").write_text(textwrap.dedent(MODEL_PY))
        tensor: dict[str, Any] = {"data_type": CONFIG_NAME[datatype], "dims": dims}
        if reshape is not None:
            tensor["reshape"] = {"shape": reshape}
        config = {
            "max_batch_size": max_batch_size,
            "input": [{"name": "INPUT0", **tensor}],
            "output": [{"name": "OUTPUT0", **tensor}],
        }
        backend: Backend = find_backend(backend_name)()
        return Served(backend, instance(directory, config))

    return served


def values(datatype: str, shape: tuple[int, ...], start: int = 0) -> Any:
    """Values that a wrong row, order, sign or width would show in."""
    count = int(np.prod(shape))
    if datatype == "BYTES":
        return objects([f"s{start + n}".encode() * (n % 3) for n in range(count)], shape)
    if datatype == "BOOL":
        return (np.arange(start, start + count) % 3 == 0).reshape(shape)
    if datatype == "BF16":
        return ("BF16", (np.arange(count) + 0x3F80 + start).astype(np.uint16).reshape(shape))
    array = np.arange(start, start + count)
    if datatype.startswith(("FP", "INT")):
        array = array * np.where(array % 2, -1, 1)
    return array.astype(NUMPY_NAME[datatype]).reshape(shape)


def same(answer: Array, given: Any) -> bool:
    expected: Array = given[1] if isinstance(given, tuple) else given
    return bool(
        answer.dtype == expected.dtype
        and answer.shape == expected.shape
        and answer.tolist() == expected.tolist()
    )


@pytest.mark.parametrize("datatype", BOTH_WAYS)
def test_every_datatype_and_shape_comes_back(serve: Serve, datatype: str) -> None:
    model = serve(datatype, [-1])
    for shape in SHAPES:
        given = values(datatype, shape)
        assert same(model.ask({"INPUT0": given})["OUTPUT0"], given), shape


@pytest.mark.parametrize("datatype", ["FP16", "INT64", "BYTES"])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3, 0)])
def test_b06_a_tensor_of_no_elements_keeps_its_shape(
    serve: Serve, datatype: str, shape: tuple[int, ...]
) -> None:
    model = serve(datatype, [-1] * len(shape), max_batch_size=0)
    given = values(datatype, shape)
    answer = model.ask({"INPUT0": given})["OUTPUT0"]
    assert answer.shape == shape
    assert answer.dtype == given.dtype


def test_b08_a_batch_of_scalars_by_an_empty_reshape(serve: Serve) -> None:
    model = serve("FP32", [1], reshape=[])
    requests = [model.request({"INPUT0": np.array([[x]], np.float32)}) for x in (3.5, -1.0)]
    assert [answer["OUTPUT0"].tolist() for answer in model.answers(*requests)] == [[[3.5]], [[-1]]]
    assert model.ask({"INPUT0": np.array([[7.25]], np.float32)})["OUTPUT0"].shape == (1, 1)


@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_b08_a_reshape_is_undone_in_the_answer(serve: Serve, max_batch_size: int) -> None:
    model = serve("INT32", [-1, 6], reshape=[-1, 2, 3], max_batch_size=max_batch_size)
    lead = (2,) if max_batch_size else ()
    given = values("INT32", (*lead, 5, 6))
    assert same(model.ask({"INPUT0": given})["OUTPUT0"], given)


def test_b20_strings_come_back_byte_for_byte(serve: Serve, backend_name: str) -> None:
    model = serve("BYTES", [-1])
    elements = [b"", b"a\0b", b"end\0\0", "\N{GRINNING FACE}\u00e9".encode(), b"x" * 70_000]
    if backend_name != "onnxruntime":  # takes UTF-8 only, and says so
        elements += [b"\xff\xfe\0", bytes(range(256))]
    given = objects(elements, (1, len(elements)))
    assert model.ask({"INPUT0": given})["OUTPUT0"].tolist() == [elements]
    twice = model.answers(*[model.request({"INPUT0": given}) for _ in range(2)])
    assert [answer["OUTPUT0"].tolist() for answer in twice] == [[elements], [elements]]


@pytest.mark.parametrize("datatype", ["FP32", "UINT8", "BYTES", "BF16"])
def test_b33_each_request_of_a_batch_gets_its_own_rows(serve: Serve, datatype: str) -> None:
    model = serve(datatype, [3])
    given = [values(datatype, (rows, 3), 100 * rows) for rows in (1, 3, 2, 1)]
    answers = model.answers(*[model.request({"INPUT0": array}) for array in given])
    assert all(same(answer["OUTPUT0"], array) for answer, array in zip(answers, given, strict=True))


def test_requests_of_other_shapes_in_one_batch_get_their_own(serve: Serve) -> None:
    model = serve("FP32", [-1])
    given = [values("FP32", (1, size), size) for size in (3, 5, 3, 0)]
    answers = model.answers(*[model.request({"INPUT0": array}) for array in given])
    assert all(same(answer["OUTPUT0"], array) for answer, array in zip(answers, given, strict=True))


def test_answers_stay_right_when_later_batches_run(serve: Serve) -> None:
    model = serve("FP32", [4])

    def batch(start: int) -> Any:
        given = [values("FP32", (1, 4), start + n) for n in range(3)]
        return given, model.backend.execute([model.request({"INPUT0": g}) for g in given])

    given, responses = batch(0)
    batch(50)
    for array, response in zip(given, responses, strict=True):
        output = response.outputs[0]
        content = output.array if output.buffer is None else output.buffer
        assert np.frombuffer(content, np.float32).tolist() == array.ravel().tolist()


@pytest.mark.parametrize("room", [0, 64])
def test_an_output_fits_its_place_whoever_writes_it(
    serve: Serve, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("naiad.worker.backends.onnxruntime.DIRECT_BYTES_MIN", 1)
    model = serve("FP32", [16])
    given = values("FP32", (2, 16), 7)
    around = place(2 * 16 * 4 + room + 64)
    around[:] = 0xA5
    target = around[: 2 * 16 * 4 + room]
    request = model.request({"INPUT0": given}, places={"OUTPUT0": target})
    (response,) = model.backend.execute([request])
    assert not isinstance(response, NaiadError)
    output = response.outputs[0]
    content = output.array if output.buffer is None else output.buffer
    assert content is not None
    found = np.frombuffer(content, np.uint8)
    assert found.tobytes() == given.tobytes()
    assert (around[2 * 16 * 4 :] == 0xA5).all()


def test_a_backend_loads_again_after_unload(serve: Serve) -> None:
    serve("FP32", [2]).backend.unload()
    given = values("FP32", (1, 2))
    assert same(serve("FP32", [2]).ask({"INPUT0": given})["OUTPUT0"], given)

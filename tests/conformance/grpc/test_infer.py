"""infer and async_infer of the stock client: every datatype, every place, every option."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, shared_memory

from support.grpc_models import DATATYPES, floats, tensor


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype(client: Any, datatype: str) -> None:
    array = DATATYPES[datatype]

    result = client.infer(f"echo_{datatype.lower()}", [tensor(datatype, array)])

    back = result.as_numpy("OUTPUT0")
    assert back.dtype == array.dtype
    assert np.array_equal(back, array, equal_nan=array.dtype.kind == "f")
    response = result.get_response()
    assert (response.model_name, response.model_version) == (f"echo_{datatype.lower()}", "1")
    assert response.id == ""


@pytest.mark.parametrize("count", [0, 1, 5_000, 300_000])
def test_every_size(client: Any, count: int) -> None:
    """None at all, inline alone, cut out of the message, through shared memory."""
    array = np.arange(count, dtype=np.float32)

    result = client.infer("echo_fp32", [tensor("FP32", array)])

    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


def test_outputs_by_name_and_the_request_id(client: Any) -> None:
    inputs = [
        tensor("FP32", np.full((2, 16), value, np.float32), name)
        for name, value in (("INPUT0", 5), ("INPUT1", 3))
    ]
    outputs = [triton.InferRequestedOutput("OUTPUT1")]

    result = client.infer("adder", inputs, outputs=outputs, request_id="mine", model_version="1")

    assert result.get_response().id == "mine"
    assert result.as_numpy("OUTPUT0") is None
    assert (result.as_numpy("OUTPUT1") == 2).all()
    assert len(client.infer("adder", inputs).get_response().outputs) == 2


def test_classes(client: Any) -> None:
    inputs = [tensor("FP32", np.array([[0.1, 0.7, 0.2, 0.5], [4, 3, 2, 1]], np.float32))]
    outputs = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]

    classes = client.infer("batched", inputs, outputs=outputs).as_numpy("OUTPUT0")

    assert classes.tolist() == [[b"0.700000:1", b"0.500000:3"], [b"4.000000:0", b"3.000000:1"]]


def test_shared_memory_for_inputs_and_outputs(client: Any) -> None:
    given = np.arange(16, dtype=np.float32)
    region = shared_memory.create_shared_memory_region("conformance", "/conformance_g", 256)
    try:
        shared_memory.set_shared_memory_region(region, [given])
        client.register_system_shared_memory("conformance", "/conformance_g", 256)
        status = client.get_system_shared_memory_status()
        assert status.regions["conformance"].byte_size == 256
        one = triton.InferInput("INPUT0", [16], "FP32")
        one.set_shared_memory("conformance", given.nbytes)
        out = triton.InferRequestedOutput("OUTPUT0")
        out.set_shared_memory("conformance", 64, offset=128)

        result = client.infer("echo_fp32", [one], outputs=[out])

        assert result.get_response().raw_output_contents == [b""]
        back = shared_memory.get_contents_as_numpy(region, np.float32, [16], offset=128)
        assert back.tolist() == given.tolist()
        with pytest.raises(InferenceServerException, match="already in manager"):
            client.register_system_shared_memory("conformance", "/conformance_g", 256)
        client.unregister_system_shared_memory("conformance")
        assert "conformance" not in client.get_system_shared_memory_status().regions
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
            client.infer("echo_fp32", [one])
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(region)


def test_parameters_reach_the_model(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="as asked") as caught:
        client.infer("echo_fp32", floats(1), parameters={"raise": "as asked", "n": 1, "f": True})

    assert caught.value.status() == "StatusCode.INTERNAL"


@pytest.mark.parametrize(
    ("model", "inputs", "options", "status", "text"),
    [
        ("nobody", floats(1), {}, "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
        ("echo_fp32", floats(1), {"model_version": "9"}, "NOT_FOUND", "version 9 is not found"),
        ("echo_fp32", floats(1), {"model_version": "x"}, "INVALID_ARGUMENT", "failed to get model"),
        ("echo_int8", floats(1), {}, "INVALID_ARGUMENT", "data-type is 'FP32', but model"),
        ("echo_fp32", [], {}, "INVALID_ARGUMENT", "expected 1 inputs but got 0 inputs"),
        ("batched", floats(1), {}, "INVALID_ARGUMENT", "unexpected shape for input 'INPUT0'"),
    ],
)  # fmt: skip
def test_refusals(
    client: Any, model: str, inputs: Any, options: dict[str, Any], status: str, text: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs, request_id="r7", **options)

    assert caught.value.status() == f"StatusCode.{status}"
    assert text in caught.value.message()


def test_a_client_that_waits_no_longer(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        client.infer("echo_fp32", floats(1), client_timeout=0.1, parameters={"sleep_ms": 5000})
    assert client.infer("echo_fp32", floats(1)).as_numpy("OUTPUT0").tolist() == [1]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client: Any, algorithm: str) -> None:
    array = np.zeros(50_000, np.float32)

    result = client.infer("echo_fp32", [tensor("FP32", array)], compression_algorithm=algorithm)

    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


def test_async_infer_and_its_cancellation(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def answered(result: Any, error: Any) -> None:
        answers.put((result, error))

    client.async_infer("echo_fp32", floats(3), callback=answered)
    result, error = answers.get(timeout=10)
    assert error is None
    assert result.as_numpy("OUTPUT0").tolist() == [3]

    call = client.async_infer(
        "echo_fp32", floats(4), callback=answered, parameters={"sleep_ms": 20_000}
    )
    call.cancel()
    result, error = answers.get(timeout=10)
    assert result is None
    assert "CANCELLED" in str(error).upper()

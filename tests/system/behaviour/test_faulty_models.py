"""What a model does wrong is its own request's error, with the output and both values named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from naiad.client import Client, Code, InferResult, ModelError, NaiadError
from naiad.testing.server import Server, serve
from support.models import add_echo, add_onnx_echo, add_python
from support.models_python import ABORTS_AT_EXIT, ECHO, python_model
from support.waiting import wait_until

ARRAYS = {"INPUT0": np.zeros((1, 4), np.float32)}
FAULTY = python_model(
    """
    faults = [json.loads(request.parameters()).get("fault", "") for request in requests]
    for fault in faults:
        if fault in OF_THE_CALL:
            return FAULTS[fault](requests)
    return [
        FAULTS[fault]([request])[0] if fault else output(array_of(request))
        for request, fault in zip(requests, faults)
    ]
    """,
    head="""
    import json

    OF_THE_CALL = (
        "raise", "none", "a tuple", "shorter", "longer", "exit", "interrupt",
        "surrogate", "printed surrogate", "long text", "no text", "exits as text",
    )

    def all_(make):
        return lambda requests: [make(array_of(request)) for request in requests]

    def raises(requests):
        raise RuntimeError("what the model says")

    def two(array):
        tensor = pb_utils.Tensor("OUTPUT0", array)
        return pb_utils.InferenceResponse([tensor, tensor])

    class NotATensor:
        def name(self):
            return "OUTPUT0"

    class NoText(Exception):
        def __str__(self):
            return self.text

    class ExitsAsText(Exception):
        def __str__(self):
            raise SystemExit(4)

    def throws(fault):
        return lambda requests: (_ for _ in ()).throw(fault)

    def with_parameter(value):
        tensor = pb_utils.Tensor("OUTPUT0", np.zeros((1, 4), np.float32))
        return pb_utils.InferenceResponse([tensor], parameters={"note": value})

    FAULTS = {
        "raise": raises,
        "integers": all_(lambda a: output(np.full(a.shape, 257))),
        "narrow": all_(lambda a: output(a.astype(np.uint8))),
        "wide": all_(lambda a: output(a.astype(np.float64))),
        "name": all_(lambda a: output(a, "OUTPUT")),
        "rank": all_(lambda a: output(a[0])),
        "width": all_(lambda a: output(a[:, :3])),
        "rows": all_(lambda a: output(np.concatenate([a, a]))),
        "strings": all_(lambda a: output(np.full(a.shape, b"x", dtype=object))),
        "nothing": all_(lambda a: pb_utils.InferenceResponse([])),
        "twice": all_(two),
        "none in the list": lambda requests: [None] * len(requests),
        "none": lambda requests: None,
        "a tuple": lambda requests: tuple(output(array_of(one)) for one in requests),
        "arrays": lambda requests: [array_of(request) for request in requests],
        "shorter": lambda requests: [],
        "longer": lambda requests: [output(array_of(one)) for one in requests] * 2,
        "no array": all_(lambda a: pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", [1])])),
        "no tensor": all_(lambda a: pb_utils.InferenceResponse([NotATensor()])),
        "exit": lambda requests: exit(3),
        "interrupt": lambda requests: (_ for _ in ()).throw(KeyboardInterrupt()),
        "own error": all_(
            lambda a: pb_utils.InferenceResponse(error=pb_utils.TritonError("as it wishes"))
        ),
        "surrogate": throws(ValueError("unknown label \\ud800")),
        "own surrogate": all_(
            lambda a: pb_utils.InferenceResponse(error=pb_utils.TritonError("file \\udcff"))
        ),
        "printed surrogate": lambda requests: [print("\\ud800")] and throws(ValueError("said"))(0),
        "long text": throws(ValueError("\u6f22" * 100_000)),
        "no text": throws(NoText()),
        "exits as text": throws(ExitsAsText()),
        "parameter surrogate": all_(lambda a: with_parameter("\\ud800")),
        "parameter number": all_(lambda a: with_parameter(2**70)),
        "parameter size": all_(lambda a: with_parameter("x" * 20_000)),
    }
    """,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    io = ["INPUT0 FP32 4"], ["OUTPUT0 FP32 4"]
    batched = "dynamic_batching { max_queue_delay_microseconds: 100000 }"
    add_python(repository, "faulty", FAULTY, *io, max_batch_size=8, extra=batched)
    two = io[1] + ["OUTPUT1 FP32 4"]
    add_python(repository, "forgetful", ECHO, io[0], two, max_batch_size=8)
    add_echo(repository, "echo", "FP32 4", max_batch_size=8)
    add_python(repository, "aborts", ABORTS_AT_EXIT, *io, max_batch_size=8)
    narrow = 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] }'
    add_onnx_echo(
        repository,
        "onnx",
        dims=("n", "m"),
        config='max_batch_size: 8 input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }'
        + narrow,
    )
    with serve(repository, arguments=["--control-mode", "explicit", "--load-model", "*"]) as server:
        yield server


FAULTS = {
    "raise": r"RuntimeError: what the model says \(.*model\.py:\d+\)",
    "integers": r"'OUTPUT0': expected FP32 \[1, 4\], got INT64 \[1, 4\]",
    "narrow": r"'OUTPUT0': expected FP32 \[1, 4\], got UINT8 \[1, 4\]",
    "wide": r"'OUTPUT0': expected FP32 \[1, 4\], got FP64 \[1, 4\]",
    "name": r"'OUTPUT0'.*'OUTPUT'",
    "rank": r"'OUTPUT0': expected FP32 \[1, 4\], got FP32 \[4\]",
    "width": r"'OUTPUT0': expected FP32 \[1, 4\], got FP32 \[1, 3\]",
    "rows": r"'OUTPUT0': expected FP32 \[1, 4\], got FP32 \[2, 4\]",
    "strings": r"'OUTPUT0': expected FP32 \[1, 4\], got BYTES \[1, 4\]",
    "nothing": r"expected output 'OUTPUT0', got only \[\]",
    "twice": r"expected each output once, got \['OUTPUT0', 'OUTPUT0'\]",
    "none in the list": "Expected an 'InferenceResponse' object.*NoneType",
    "none": "Expected a list in the execute return, found type.*NoneType",
    "a tuple": "Expected a list in the execute return, found type.*tuple",
    "arrays": "Expected an 'InferenceResponse' object.*ndarray",
    "shorter": r"InferenceRequest\(s\) size is:1, and InferenceResponse\(s\) size is:0",
    "longer": r"InferenceRequest\(s\) size is:1, and InferenceResponse\(s\) size is:2",
    "no array": "'OUTPUT0': expected a numpy.ndarray, got list",
    "no tensor": "expected Tensor objects as output_tensors, got NotATensor",
    "exit": r"SystemExit: 3 \(.*model\.py:\d+\)",
    "interrupt": r"KeyboardInterrupt",
    "own error": "as it wishes",
    "surrogate": r"ValueError: unknown label \\ud800 \(model\.py:\d+\)",
    "own surrogate": r"file \\udcff",
    "printed surrogate": "ValueError: said",
    "long text": "ValueError: 漢漢漢",
    "no text": r"NoText'>: \(its text cannot be had, because its __str__ raises",
    "exits as text": r"ExitsAsText'>: \(its text cannot be had, because its __str__ raises",
    "parameter surrogate": "response parameter 'note': expected a text that UTF-8 can hold",
    "parameter number": "response parameter 'note': expected an integer of 64 bits, got one of 71",
    "parameter size": "expected at most 8192 bytes of response parameters, got 20004",
}


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_answer_is_an_error_that_names_what_was_expected_and_what_came(
    client: Client, fault: str
) -> None:
    with pytest.raises(ModelError, match=FAULTS[fault]):
        client.infer("faulty", ARRAYS, parameters={"fault": fault})
    assert client.infer("faulty", ARRAYS)["OUTPUT0"].shape == (1, 4)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    "fault",
    ["narrow", "name", "nothing", "none", "shorter", "arrays", "surrogate", "no text",
     "parameter surrogate"],
)  # fmt: skip
def test_a_wrong_answer_in_a_batch_is_the_guilty_requests_alone(client: Client, fault: str) -> None:
    futures = [
        client.submit("faulty", ARRAYS, parameters={"fault": fault} if index == 2 else {})
        for index in range(4)
    ]
    outcomes: list[InferResult | NaiadError] = []
    for future in futures:
        try:
            outcomes.append(future.result(timeout=20))
        except NaiadError as error:
            outcomes.append(error)
    guilty = outcomes.pop(2)
    assert isinstance(guilty, ModelError)
    assert all(isinstance(outcome, InferResult) for outcome in outcomes), outcomes


@pytest.mark.usefixtures("unharmed")
def test_an_output_the_model_never_makes_is_missed_only_when_it_is_wanted(client: Client) -> None:
    with pytest.raises(ModelError, match="expected output 'OUTPUT1'") as caught:
        client.infer("forgetful", ARRAYS)
    assert caught.value.code == Code.MODEL_OUTPUT_INVALID
    assert client.infer("forgetful", ARRAYS, ["OUTPUT0"]).names == ("OUTPUT0",)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("name", "'OUTPUT0'"),
        ("datatype", r"'OUTPUT0': expected FP32 \[1, 4\], got INT64 \[1, 4\]"),
        ("shape", r"'OUTPUT0': expected FP32 \[1, 4\], got FP32 \[1, 4, 7\]"),
        ("size", "'OUTPUT0': expected 16 bytes for FP32.*got 17"),
        ("missing", "expected output 'OUTPUT0'"),
        ("count", "expected 1 responses, one for each request, got 0"),
    ],
)
def test_the_outputs_of_every_backend_are_checked(client: Client, fault: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        client.infer("echo", ARRAYS, parameters={"output_fault": fault})


@pytest.mark.usefixtures("unharmed")
def test_an_onnx_output_of_another_shape_than_configured_is_an_error(client: Client) -> None:
    assert client.infer("onnx", {"INPUT0": np.zeros((2, 3), np.float32)})["OUTPUT0"].shape == (2, 3)
    with pytest.raises(ModelError, match=r"'OUTPUT0': expected FP32 \[2, 3\], got FP32 \[2, 4\]"):
        client.infer("onnx", {"INPUT0": np.zeros((2, 4), np.float32)})


def test_an_import_that_aborts_at_the_end_of_its_process_harms_nobody(
    client: Client, server: Server
) -> None:
    deaths = client.status()["counters"]["worker_deaths"]
    for _ in range(2):
        client.load("aborts")
        assert client.infer("aborts", ARRAYS)["OUTPUT0"].shape == (1, 4)
        client.unload("aborts")
        wait_until(
            lambda: (
                [row["reason"] for row in client.index() if row["name"] == "aborts"] == ["unloaded"]
            ),
            "it is unloaded",
        )
    assert client.status()["counters"]["worker_deaths"] == deaths
    assert "SIGABRT" not in server.log
    client.load("aborts")
    assert client.model_ready("aborts")

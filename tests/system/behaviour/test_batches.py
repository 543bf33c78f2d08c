"""Requests that share a batch: each gets its own rows, and its own error alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, InferResult, ModelError, NaiadError, RequestError
from naiad.testing.server import Server, serve
from support.models import add_echo, add_onnx_adder, add_python
from support.models_python import ECHO, RAISES_ON_NEGATIVE
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("unharmed")

WAIT_FOR_MORE = "dynamic_batching { max_queue_delay_microseconds: 200000 }"
"""So that what is submitted together is one batch, however slow the machine is."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    batched: dict[str, Any] = {"max_batch_size": 8, "extra": WAIT_FOR_MORE}
    add_echo(repository, "echo", "FP32 -1", **batched)
    add_python(repository, "numbers", ECHO, ["INPUT0 FP32 4"], ["OUTPUT0 FP32 4"], **batched)
    add_python(repository, "strings", ECHO, ["INPUT0 BYTES 2"], ["OUTPUT0 BYTES 2"], **batched)
    add_python(
        repository,
        "fragile",
        RAISES_ON_NEGATIVE,
        ["INPUT0 FP32 4"],
        ["OUTPUT0 FP32 4"],
        **batched,
    )
    directory = add_onnx_adder(repository, "adder", dims=("n", 4))
    (directory / "config.pbtxt").write_text(f"max_batch_size: 8\n{WAIT_FOR_MORE}\n")
    with serve(repository, arguments=["--spares", "0"]) as server:
        yield server


def batch_sizes(client: Client, model: str) -> set[int]:
    (stats,) = client.statistics(model)["model_stats"]
    return {row["batch_size"] for row in stats["batch_stats"]}


def together(
    client: Client, model: str, requests: Sequence[dict[str, Any]]
) -> list[InferResult | NaiadError]:
    """The answers, errors included, to requests submitted at once."""
    futures = [client.submit(model, arrays) for arrays in requests]
    answers: list[InferResult | NaiadError] = []
    for future in futures:
        try:
            answers.append(future.result(timeout=20))
        except NaiadError as fault:
            answers.append(fault)
    return answers


def result(answer: InferResult | NaiadError) -> InferResult:
    assert isinstance(answer, InferResult), answer
    return answer


@pytest.mark.parametrize("model", ["echo", "numbers"])
def test_each_caller_gets_its_own_row(client: Client, model: str) -> None:
    arrays = [np.full((1, 4), index, np.float32) for index in range(3)]
    answers = together(client, model, [{"INPUT0": array} for array in arrays])
    for array, answer in zip(arrays, answers, strict=True):
        assert (result(answer)["OUTPUT0"] == array).all()
        assert result(answer)["OUTPUT0"].shape == (1, 4)
    assert 3 in batch_sizes(client, model)


def test_each_caller_gets_its_own_strings(client: Client) -> None:
    arrays = [np.array([[f"caller {index}", "x" * index]], dtype=object) for index in range(3)]
    answers = together(client, "strings", [{"INPUT0": array} for array in arrays])
    for index, answer in enumerate(answers):
        assert result(answer)["OUTPUT0"].tolist() == [[f"caller {index}".encode(), b"x" * index]]
    assert 3 in batch_sizes(client, "strings")


def test_requests_of_several_rows_get_their_own_rows_of_a_joined_batch(client: Client) -> None:
    arrays = [np.full((rows, 4), rows, np.float32) for rows in (1, 3, 2)]
    answers = together(client, "adder", [{"INPUT0": one, "INPUT1": 2 * one} for one in arrays])
    for array, answer in zip(arrays, answers, strict=True):
        assert (result(answer)["OUTPUT0"] == 3 * array).all()
        assert (result(answer)["OUTPUT1"] == -array).all()
        assert result(answer)["OUTPUT0"].shape == array.shape
    assert 6 in batch_sizes(client, "adder")


def test_more_rows_than_the_batch_size_are_refused_with_the_limit(client: Client) -> None:
    with pytest.raises(
        RequestError, match=r"batch-size must be <= 8 for 'numbers', got 100; send it in several"
    ):
        client.infer("numbers", {"INPUT0": np.zeros((100, 4), np.float32)})


def test_inputs_of_different_row_counts_are_refused(client: Client) -> None:
    arrays = {"INPUT0": np.zeros((2, 4), np.float32), "INPUT1": np.zeros((3, 4), np.float32)}
    with pytest.raises(RequestError, match="'INPUT1' batch size does not match other inputs"):
        client.infer("adder", arrays)


def test_of_eight_batched_requests_only_the_failing_one_fails(client: Client) -> None:
    arrays = [np.full((1, 4), index, np.float32) for index in range(8)]
    arrays[5] = -arrays[5]
    answers = together(client, "fragile", [{"INPUT0": array} for array in arrays])
    fault = answers.pop(5)
    assert isinstance(fault, ModelError)
    assert "ValueError: a negative number" in fault.message
    assert "model.py:" in fault.message
    for index, answer in zip([0, 1, 2, 3, 4, 6, 7], answers, strict=True):
        assert (result(answer)["OUTPUT0"] == index).all()


def test_the_traceback_of_a_failing_model_is_in_the_log(client: Client, server: Server) -> None:
    with pytest.raises(ModelError):
        client.infer("fragile", {"INPUT0": -np.ones((1, 4), np.float32)}, label="order 66")

    def told() -> str:
        """The log from this request on; others before it failed in the same way."""
        return server.log.partition("request order 66")[2]

    wait_until(lambda: "  ValueError: a negative number" in told(), "the whole traceback is logged")
    assert "Traceback (most recent call last):" in told()
    assert 'raise ValueError("a negative number")' in told()

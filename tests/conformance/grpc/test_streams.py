"""ModelStreamInfer through the stock client."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from support.grpc_models import DATATYPES, FINAL, floats, tensor
from support.waiting import wait_until

PATIENCE_S = 15


class Stream:
    """A client with an open stream; `next` gives (result, error) as they come."""

    def __init__(self, target: str, **options: Any) -> None:
        self.client = triton.InferenceServerClient(target)
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(
            lambda result, error: self._answers.put((result, error)), **options
        )

    def _answered(self, result: Any, error: Any) -> None:
        self._answers.put((result, error))

    def ask(self, value: float, *, model: str = "echo_fp32", **options: Any) -> None:
        self.client.async_stream_infer(model, floats(value), **options)

    def next(self) -> tuple[Any, Any]:
        return self._answers.get(timeout=PATIENCE_S)

    def values(self, count: int) -> list[float]:
        found = []
        for _ in range(count):
            result, error = self.next()
            assert error is None, error
            found.append(float(result.as_numpy("OUTPUT0")[0]))
        return found


@pytest.fixture
def stream(target: str) -> Iterator[Stream]:
    stream = Stream(target)
    yield stream
    stream.client.stop_stream(cancel_requests=True)
    stream.client.close()


def test_answers_come_in_the_order_of_the_requests(stream: Stream) -> None:
    stream.ask(1, parameters={"sleep_ms": 200})
    for value in (2, 3, 4):
        stream.ask(value, model="echo_fp32")

    assert stream.values(4) == [1, 2, 3, 4]


def test_models_of_different_speed_keep_the_order_too(stream: Stream) -> None:
    stream.ask(1, parameters={"sleep_ms": 300})
    stream.client.async_stream_infer("echo_int8", [tensor("INT8", DATATYPES["INT8"])])

    first, second = stream.next()[0], stream.next()[0]

    assert first.get_response().model_name == "echo_fp32"
    assert second.get_response().model_name == "echo_int8"


def test_every_answer_is_the_final_one(stream: Stream) -> None:
    stream.ask(1, request_id="a")
    stream.ask(2, request_id="b", enable_empty_final_response=True)

    for ident in ("a", "b"):
        response = stream.next()[0].get_response()
        assert response.id == ident
        assert response.parameters[FINAL].bool_param is True


def test_an_error_is_an_item_and_the_stream_goes_on(stream: Stream) -> None:
    stream.ask(1)
    stream.ask(2, model="nobody", request_id="lost")
    stream.ask(3, parameters={"raise": "as asked"})
    stream.ask(4)

    assert stream.values(1) == [1]
    result, error = stream.next()
    assert result is None or error is not None
    assert "'nobody' is not found" in str(error)
    _, error = stream.next()
    assert "as asked" in str(error)
    assert stream.values(1) == [4]


@pytest.mark.differs("newer releases than 2.51 give one")
def test_who_asks_for_a_status_gets_one(target: str) -> None:
    stream = Stream(target, headers={"triton_grpc_error": "true"})
    stream.ask(1)
    assert stream.values(1) == [1]
    stream.ask(2, model="nobody")

    _, error = stream.next()

    assert error.status() == "StatusCode.NOT_FOUND"
    assert "'nobody' is not found" in error.message()
    with pytest.raises(InferenceServerException, match="no longer in valid state"):
        stream.ask(3)
    stream.client.close()


def test_a_half_closed_stream_still_gets_its_answers(target: str) -> None:
    stream = Stream(target)
    stream.ask(1, parameters={"sleep_ms": 300})
    stream.ask(2)

    stream.client.stop_stream()

    assert stream.values(2) == [1, 2]
    stream.client.close()


def test_cancelling_a_stream_cancels_all_of_it(
    target: str, client: Any, under_way: Callable[[], int]
) -> None:
    stream = Stream(target)
    for value in range(20):
        stream.ask(value, parameters={"sleep_ms": 60_000})
    wait_until(lambda: under_way() == 20, "all requests under way")

    stream.client.stop_stream(cancel_requests=True)
    stream.client.close()

    wait_until(lambda: under_way() == 0, "all requests cancelled")
    assert client.infer("echo_fp32", floats(5)).as_numpy("OUTPUT0").tolist() == [5]


def test_more_than_a_stream_holds_at_once(stream: Stream) -> None:
    for value in range(600):
        stream.ask(value)

    assert stream.values(600) == list(range(600))

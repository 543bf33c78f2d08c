"""Requests and answers over a real socket, the same for every client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from naiad.client import (
    Code,
    InferInput,
    ModelError,
    RequestError,
    Unavailable,
    outstanding,
    prepare,
)
from support.clients import Broker, Connect

SMALL = np.arange(16, dtype=np.float32).reshape(1, 16)
LARGE = np.arange(100_000, dtype=np.int64).reshape(10, 10_000)


def test_small_and_large_inputs_come_back(broker: Broker, connect: Connect) -> None:
    client = connect()
    result = client.infer("echo", {"small": SMALL, "large": LARGE, "text": np.array([b"a\0", b""])})
    assert result.names == ("small", "large", "text")
    np.testing.assert_array_equal(result["small"], SMALL)
    np.testing.assert_array_equal(result.as_numpy("large"), LARGE)
    assert result.version == 1
    with pytest.raises(KeyError, match="no output 'other'"):
        result["other"]


def test_raw_inputs_and_outputs_need_no_numpy(broker: Broker, connect: Connect) -> None:
    client = connect()
    given = InferInput("x", "UINT8", (2, 2), b"abcd")
    output = client.infer("echo", [given]).outputs[0]
    assert (output.name, output.datatype, output.shape) == ("x", "UINT8", (2, 2))
    assert bytes(output.data) == b"abcd"


def test_many_in_flight_are_each_answered_with_their_own(broker: Broker, connect: Connect) -> None:
    client = connect()
    results = client.together([("echo", {"x": np.array([n])}) for n in range(3000)])
    assert [int(result["x"][0]) for result in results] == list(range(3000))


def test_a_prepared_request_may_be_sent_again(broker: Broker, connect: Connect) -> None:
    client = connect()
    request = prepare("echo", {"x": SMALL}, label="mine", priority=1)
    for result in client.together([(request,), (request,)]):
        np.testing.assert_array_equal(result["x"], SMALL)


def test_an_error_answer_is_raised_with_its_code(broker: Broker, connect: Connect) -> None:
    with pytest.raises(ModelError, match="the model said no") as raised:
        connect().infer("error", {"x": SMALL})
    assert raised.value.code is Code.MODEL_ERROR


def test_a_second_answer_is_counted_and_dropped(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.infer("twice", {"x": SMALL})
    client.call("live")
    assert client.session.requests.duplicate_answers == 1


def test_over_the_budget_of_requests_clients_wait(run_dir: object, connect: Connect) -> None:
    broker = Broker(run_dir).start("--requests-max", "3")  # type: ignore[arg-type]
    try:
        client = connect()
        client.do("live")
        results = client.together([("echo", {"x": np.array([n])}) for n in range(50)])
        assert [int(result["x"][0]) for result in results] == list(range(50))
    finally:
        broker.stop()


def test_over_the_budget_of_bytes_clients_wait(run_dir: object, connect: Connect) -> None:
    broker = Broker(run_dir).start("--bytes-max", str(2 * SMALL.nbytes))  # type: ignore[arg-type]
    try:
        client = connect()
        client.do("live")
        assert len(client.together([("echo", {"x": SMALL})] * 20)) == 20
        with pytest.raises(RequestError, match="expected at most 128"):
            client.infer("echo", {"x": np.zeros(2500)})
    finally:
        broker.stop()


def test_over_the_budget_clients_may_ask_for_an_error(run_dir: object, connect: Connect) -> None:
    broker = Broker(run_dir).start("--requests-max", "1")  # type: ignore[arg-type]
    try:
        client = connect(on_full="raise")
        client.do("live")
        client.begin("silent", {"x": SMALL})
        with pytest.raises(Unavailable) as raised:
            client.infer("echo", {"x": SMALL})
        assert raised.value.code is Code.BUDGET_EXCEEDED
        assert raised.value.retryable
    finally:
        broker.stop()


def test_a_cancelled_request_is_cancelled_at_the_broker(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.abandon("silent", {"x": SMALL})
    seen = client.call("seen")
    [request_id] = [event[2] for event in seen if event[:2] == ["Infer", "silent"]]
    assert ["Cancel", [request_id]] in seen


def test_control_calls(broker: Broker, connect: Connect) -> None:
    client = connect()
    assert client.do("live") is True
    assert client.do("ready") is True
    with pytest.raises(RequestError, match="no model_config") as raised:
        client.do("config", "echo")
    assert raised.value.code is Code.UNSUPPORTED
    with pytest.raises(RequestError, match="a string of 1 to"):
        client.do("load", "")
    with pytest.raises(RequestError, match="version"):
        client.do("model_ready", "echo", -7)


def test_a_closed_client_says_so(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.infer("echo", {"x": SMALL})
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.infer("echo", {"x": SMALL})
    client.close()
    other = connect()
    assert ["Bye"] in other.call("seen")


@pytest.mark.parametrize(
    ("inputs", "options", "text"),
    [
        ({"x": np.array([object()])}, {}, "expected bytes or str elements"),
        ({"x": np.array(["2020"], dtype="M8")}, {}, "no datatype"),
        ({1: SMALL}, {}, "name as a string"),
        ([InferInput("x", "FP33", (1,), b"1234")], {}, "unknown datatype"),
        ([InferInput("x", "FP32", (1.5,), b"1234")], {}, "shape"),  # type: ignore[arg-type]
        ({"x": SMALL}, {"priority": -1}, "priority"),
        ({"x": SMALL}, {"timeout_us": 1.5}, "timeout_us"),
        ({"x": SMALL}, {"parameters": {"a": [1]}}, "parameter 'a'"),
        ({"x": SMALL}, {"parameters": {f"p{n}": n for n in range(257)}}, "257 parameters"),
        ({"x": SMALL}, {"label": "x" * 5000}, "label"),
        ({"x": SMALL}, {"version": "1"}, "version"),
        (
            {"x": SMALL},
            {"parameters": {f"p{n}": "x" * 16_000 for n in range(5)}},
            "names, shapes and parameters take",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_and_disturbs_nobody(
    broker: Broker, connect: Connect, inputs: object, options: dict[str, object], text: str
) -> None:
    client = connect()
    with pytest.raises(RequestError, match=text):
        client.infer("echo", inputs, **options)
    client.infer("echo", {"x": SMALL})


def test_a_request_times_out_although_the_broker_says_nothing(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outstanding, "TIMEOUT_MARGIN_NS", 20_000_000)
    client = connect()
    client.infer("echo", {"x": SMALL}, timeout_us=10_000_000)
    with pytest.raises(Unavailable, match="no answer within the timeout") as raised:
        client.infer("silent", {"x": SMALL}, timeout_us=20_000)
    assert raised.value.code is Code.TIMEOUT
    np.testing.assert_array_equal(client.infer("echo", {"x": SMALL})["x"], SMALL)
    client.call("live")
    assert client.session.unanswered == 0


def test_a_timeout_counts_while_a_request_waits_for_room(run_dir: Path, connect: Connect) -> None:
    broker = Broker(run_dir).start("--requests-max", "1")
    client = connect()
    client.begin("silent", {"x": SMALL})
    with pytest.raises(Unavailable, match="before it could be sent") as raised:
        client.infer("echo", {"x": SMALL}, timeout_us=20_000)
    assert raised.value.code is Code.TIMEOUT
    client.call("answer")
    client.infer("echo", {"x": SMALL}, timeout_us=10_000_000)
    broker.stop()

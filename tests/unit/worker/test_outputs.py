"""What does not fit the config is refused, naming the output and both values."""

from collections.abc import Sequence
from typing import Any

import pytest

from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import Code, ModelError
from naiad.protocol.messages import PARAMETERS_MAX, OutputRequest
from naiad.worker.backends.base import OutputTensor
from naiad.worker.outputs import PARAMETERS_BYTES_MAX, OutputRules
from support.worker_parts import config_of, tensor_json

RULES = OutputRules(
    config_of(
        [tensor_json("IN")],
        [
            tensor_json("A", "TYPE_FP32", -1, 4),
            tensor_json("B", "TYPE_STRING", 1),
            tensor_json("C", "TYPE_INT64", 2, 6, reshape={"shape": [12]}),
        ],
    )
)


def output(name: str, datatype: str, shape: Sequence[int]) -> OutputTensor:
    return OutputTensor(name, datatype, shape, buffer=b"")


@pytest.mark.parametrize(
    ("given", "answered"),
    [
        (output("A", "FP32", (2, 7, 4)), ((2, 7, 4), 2 * 7 * 4 * 4)),
        (output("A", "FP32", [2, 7, 4]), ((2, 7, 4), 2 * 7 * 4 * 4)),
        (output("A", "FP32", (2, 0, 4)), ((2, 0, 4), 0)),
        (output("B", "BYTES", (2, 1)), ((2, 1), None)),
        (output("C", "INT64", (2, 12)), ((2, 2, 6), 2 * 12 * 8)),
    ],
)
def test_what_fits_is_answered_in_the_clients_shape(
    given: OutputTensor, answered: tuple[object, object]
) -> None:
    assert RULES.check(given, 2) == answered


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (output("A", "FP64", (2, 7, 4)), r"'A': expected FP32 \[2, -1, 4\], got FP64 \[2, 7, 4\]"),
        (output("A", "FP32", (2, 7, 5)), r"'A': expected FP32 \[2, -1, 4\], got FP32 \[2, 7, 5\]"),
        (output("A", "FP32", (3, 7, 4)), r"expected FP32 \[2, -1, 4\], got FP32 \[3, 7, 4\]"),
        (output("A", "FP32", (7, 4)), r"expected FP32 \[2, -1, 4\], got FP32 \[7, 4\]"),
        (output("C", "INT64", (2, 2, 6)), r"expected INT64 \[2, 12\], got INT64 \[2, 2, 6\]"),
        (output("A", "FLOAT", (2, 7, 4)), "expected FP32 .*, got FLOAT"),
    ],
)
def test_what_does_not_fit_is_an_error_with_both_values(given: OutputTensor, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        RULES.check(given, 2)
    assert caught.value.code is Code.MODEL_OUTPUT_INVALID


def test_a_model_that_does_not_batch_has_no_batch_dimension() -> None:
    rules = OutputRules(config_of([], [tensor_json("A", "TYPE_FP32", 4)], max_batch_size=0))
    assert rules.check(output("A", "FP32", (4,)), 9) == ((4,), 16)


def test_only_requested_outputs_in_the_models_order() -> None:
    assert RULES.wanted(()) == ("A", "B", "C")
    assert RULES.wanted((OutputRequest("C"), OutputRequest("A"))) == ("A", "C")
    a, b, c = (output(name, "FP32", (1,)) for name in "ABC")
    assert RULES.select([c, b, a], ("A", "C")) == [a, c]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("AB", "expected output 'C', got only"),
        ("ABCX", "output 'X' is not in the configuration, which has A, B, C"),
        ("ABCC", "expected each output once"),
        ("", "expected output 'A', got only"),
    ],
)
def test_missing_unknown_and_repeated_outputs(names: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        RULES.select([output(name, "FP32", (1,)) for name in names], ("A", "B", "C"))


def test_response_parameters_must_be_plain_values() -> None:
    assert RULES.parameters({"k": 1, "x": "y"}) == {"k": 1, "x": "y"}
    with pytest.raises(ModelError, match=r"response parameter 'k': expected .*, got list"):
        RULES.parameters({"k": []})
    with pytest.raises(ModelError, match="at most 256 response parameters, got 257"):
        RULES.parameters({str(number): number for number in range(PARAMETERS_MAX + 1)})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"k": "\ud800"}, "'k': expected a text that UTF-8 can hold"),
        ({"\udc80": 1}, r"'\\udc80': expected a text that UTF-8 can hold"),
        ({"k": 2**64}, "'k': expected an integer of 64 bits, got one of 65"),
        ({"k": -(2**63)}, "'k': expected an integer of 64 bits, got one of 64"),
        ({"k": "x" * PARAMETERS_BYTES_MAX}, "at most 8192 bytes of response parameters, got 8193"),
        ({"a": "é" * 3000, "b": "é" * 3000}, "at most 8192 bytes .*, got 12002"),
    ],
)
def test_response_parameters_that_no_message_can_carry(given: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        RULES.parameters(given)


def test_response_parameters_may_be_as_large_as_a_message_takes() -> None:
    given = {"k": "x" * (PARAMETERS_BYTES_MAX - 5), "n": 2**64 - 1, "m": -(2**63) + 1, "f": 0.5}
    result = m.BatchResult(None, (), 0, True, RULES.parameters({**given, "t": True}))
    results = m.Results(1, (result,), m.Durations(0, 0, 0), 0, ())
    assert decode(encode(results)) == results


@pytest.mark.parametrize("shape", [(2, 0, 2**70), (2, *[0] * 40)])
def test_shapes_that_no_message_can_carry(shape: tuple[int, ...]) -> None:
    dims = [-1] * (len(shape) - 1)
    rules = OutputRules(config_of([tensor_json("IN")], [tensor_json("A", "TYPE_FP32", *dims)]))
    with pytest.raises(ModelError, match="output 'A': expected at most 32 dimensions of 64-bit"):
        rules.check(output("A", "FP32", shape), 2)

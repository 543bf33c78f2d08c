"""What the client accepts, the broker can read: one odd request must not end a whole session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.client import InferInput, OutputPlace, RequestError, prepare
from naiad.client.control import Operation, load, of_model, of_region, region_register, unload
from naiad.client.packing import Request, infer_message
from naiad.protocol import messages as m
from naiad.protocol.checks import ARRAY_ITEMS_MAX, NAME_BYTES_MAX, RANK_MAX, STRING_BYTES_MAX
from naiad.protocol.codec import decode, encode

VALUES = np.ones(4, np.float32)
LONG = "n" * (NAME_BYTES_MAX + 1)
LONE = "\ud800"
"""Not encodable as UTF-8; what surrogateescape or JSON may leave in a text."""


def is_read(model: Any, inputs: Any, outputs: Any = None, **options: Any) -> bool:
    """False when the client refuses the request; else the broker must be able to decode it."""
    try:
        parts = prepare(model, inputs, outputs, **options)
    except RequestError:
        return False
    message = infer_message(deque([Request(1, parts, None)]), m.INLINE_BYTES_MAX)
    assert message is not None
    header, *payload = [bytes(frame) for frame in message]
    decoded = decode(header, [len(frame) for frame in payload])
    assert type(decoded) is m.Infer
    return True


@pytest.mark.parametrize(
    ("model", "inputs", "options"),
    [
        ("m", {"x": np.ones([1] * (RANK_MAX + 1), np.float32)}, {}),
        ("m", {"x": np.ones([1] * 64, np.float32)}, {}),
        ("m", {"x": np.zeros([0] * (RANK_MAX + 1), object)}, {}),
        ("m", {LONG: VALUES}, {}),
        ("m", {LONE: VALUES}, {}),
        (LONG, {"x": VALUES}, {}),
        (LONE, {"x": VALUES}, {}),
        ("m", [InferInput(LONE, "FP32", (4,), bytes(16))], {}),
        ("m", [InferInput("x", "FP32", (True, 4), bytes(16))], {}),
        ("m", [InferInput("x", "FP32", (2**63,), bytes(16))], {}),
        ("m", [InferInput("x", "FP32", (4,), None, int(m.Place.REGION), -1, 0, 16)], {}),
        ("m", [InferInput("x", "FP32", (4,), None, int(m.Place.REGION), 1, 2**64, 16)], {}),
        ("m", [InferInput("x", "FP32", (4,), None, int(m.Place.REGION), 1, 0, True)], {}),
        ("m", [InferInput("x", "FP32", (4,), bytes(16), 7)], {}),
        ("m", {f"x{number}": VALUES for number in range(ARRAY_ITEMS_MAX + 1)}, {}),
        ("m", {"x": VALUES}, {"label": LONG}),
        ("m", {"x": VALUES}, {"label": LONE}),
        ("m", {"x": VALUES}, {"version": True}),
        ("m", {"x": VALUES}, {"version": 2**63}),
        ("m", {"x": VALUES}, {"priority": 2**64}),
        ("m", {"x": VALUES}, {"timeout_us": 2**62}),
        ("m", {"x": VALUES}, {"accounting_key": LONE}),
        ("m", {"x": VALUES}, {"fairness_key": LONG}),
        ("m", {"x": VALUES}, {"traceparent": LONE}),
        ("m", {"x": VALUES}, {"sequence": (LONE, True, False)}),
        ("m", {"x": VALUES}, {"sequence": (2**64, True, False)}),
        ("m", {"x": VALUES}, {"parameters": {LONE: 1}}),
        ("m", {"x": VALUES}, {"parameters": {"a": LONE}}),
        ("m", {"x": VALUES}, {"parameters": {"a": "x" * (STRING_BYTES_MAX + 1)}}),
        ("m", {"x": VALUES}, {"parameters": {"a": np.float32(1)}}),
        ("m", {"x": VALUES}, {"parameters": {"a": 2**64}}),
        ("m", {"x": VALUES}, {"parameters": {str(n): n for n in range(m.PARAMETERS_MAX + 1)}}),
    ],
)
def test_what_no_broker_could_read_is_refused_alone(
    model: Any, inputs: Any, options: dict[str, Any]
) -> None:
    assert not is_read(model, inputs, **options)


@pytest.mark.parametrize(
    "outputs",
    [[LONG], [LONE], {"y": OutputPlace(-1, 0, 4)}, {LONE: None}, {"y": (1, 2, 2**63, None)}],
)
def test_outputs_as_well(outputs: Any) -> None:
    assert not is_read("m", {"x": VALUES}, outputs)


NAMES = st.one_of(
    st.text(max_size=12),
    st.text(alphabet=st.characters(categories=["Cs", "Lu", "So"]), max_size=4),
    st.integers(NAME_BYTES_MAX - 1, NAME_BYTES_MAX + 1).map(lambda size: "ü" * size),
)
SHAPES = st.one_of(
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(RANK_MAX - 1, 64).map(lambda rank: [1] * rank),
)
SCALARS = st.one_of(NAMES, st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.binary())
DTYPES = st.sampled_from(["?", "i1", "<i8", ">i4", "u2", "f2", "f4", "f8", "O", "c8", "M8[s]"])


@settings(max_examples=200)
@given(
    st.dictionaries(NAMES, st.tuples(SHAPES, DTYPES), max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            "label": NAMES,
            "priority": SCALARS,
            "timeout_us": SCALARS,
            "version": SCALARS,
            "sequence": st.tuples(SCALARS, SCALARS, SCALARS),
            "parameters": st.dictionaries(NAMES, SCALARS, max_size=3),
        },
    ),
    st.lists(NAMES, max_size=3),
)
def test_anything_is_read_or_refused(
    inputs: dict[str, Any], options: dict[str, Any], outputs: list[str]
) -> None:
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in inputs.items()}
    is_read("m", arrays, outputs, **options)


@pytest.mark.parametrize("text", [LONG * 20, LONE, "", 5])
def test_calls_are_refused_or_read_too(text: Any) -> None:
    makers: list[Callable[[], Operation]] = [
        lambda: of_model("model_ready", text, -1),
        lambda: of_model("model_ready", "m", text),
        lambda: load(text, None),
        lambda: load("m", text),
        lambda: unload(text, False),
        lambda: region_register(text, "/k", 1, 0),
        lambda: region_register("n", text, 1, 0),
        lambda: region_register("n", "/k", text, 0),
        lambda: of_region("region_status", text),
    ]
    for make in makers:
        try:
            operation = make()
        except RequestError:
            continue
        decode(encode(m.Control(1, operation.name, operation.arguments)), [])

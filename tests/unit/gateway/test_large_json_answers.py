"""Answers whose JSON is written in slices, the same as at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from naiad.client.tensors import pack_bytes
from naiad.gateway import large_json
from naiad.gateway.calls import AnswerOutput, CallOutput, InferAnswer, InferCall
from naiad.gateway.http_answer import answer_body
from naiad.gateway.http_infer import slow_outputs
from naiad.gateway.json_tensors import SLICE_BYTES as SLICE_BYTES_OUT
from naiad.gateway.json_tensors import SLICE_ITEMS, text_slices, to_json
from naiad.gateway.large_json import STEP_TEXT_BYTES, LargeJson
from naiad.gateway.long_work import LongWork
from naiad.protocol.errors import ModelError, RequestError
from support.large_json import STRINGS

LEAST_BYTES = 64


def written(outputs: Sequence[AnswerOutput]) -> dict[str, list[bytes]]:
    return asyncio.run(LargeJson(LongWork()).texts(outputs))


@pytest.mark.parametrize(
    ("datatype", "data", "count"),
    [
        ("FP32", np.arange(30_000, dtype="<f4") / 7, 30_000),
        ("INT8", np.arange(30_000).astype("i1"), 30_000),
        ("BYTES", np.array(STRINGS * 1000, dtype=object), len(STRINGS) * 1000),
        ("BYTES", np.array(["x" * 100_000, "", "y"], dtype=object), 3),
        ("FP32", np.empty(0, dtype="<f4"), 0),
    ],
    ids=["FP32", "INT8", "strings", "long strings", "none"],
)
def test_outputs(datatype: str, data: Any, count: int) -> None:
    raw = memoryview(pack_bytes("O", data) if datatype == "BYTES" else data.tobytes())
    parts = written([AnswerOutput("O", datatype, (count,), raw)])["O"]
    assert b"".join(parts) == to_json("O", datatype, (count,), raw)
    assert max(map(len, parts)) < 200_000


def test_outputs_that_json_cannot_hold() -> None:
    for datatype, raw in (("FP16", bytes(80_000)), ("BYTES", b"\1\0\0\0\xff" * 9000)):
        with pytest.raises(RequestError, match="Please use the binary data format"):
            written([AnswerOutput("O", datatype, (9000,), memoryview(raw))])


@pytest.mark.parametrize("at", [0, 1, SLICE_BYTES_OUT - 1, SLICE_BYTES_OUT, 3 * SLICE_BYTES_OUT])
@pytest.mark.parametrize("odd", ["", "\U0001f600", '\x01"\\', b"\xff", b"\xe2\x82"])
def test_long_strings_are_written_in_pieces(at: int, odd: str | bytes) -> None:
    """With the same faults as a short one; and what is before and behind them."""
    insert = odd.encode() if isinstance(odd, str) else odd
    text = b"a" * at + insert + b"b" * (3 * SLICE_BYTES_OUT - at)
    for items in ([text], [b"x", text, text, b"y"], [text, b""]):
        raw = memoryview(pack_bytes("O", np.array([*items, None], dtype=object)[:-1]))
        one = AnswerOutput("O", "BYTES", (len(items),), raw)
        if isinstance(odd, bytes):
            with pytest.raises(RequestError) as whole:
                to_json("O", "BYTES", (len(items),), raw)
            with pytest.raises(RequestError) as caught:
                written([one])
            assert caught.value.message == whole.value.message
        else:
            parts = written([one])["O"]
            assert b"".join(parts) == to_json("O", "BYTES", (len(items),), raw)
            assert max(map(len, parts)) <= SLICE_BYTES_OUT + 100


def test_a_string_that_is_cut_off_is_no_string() -> None:
    raw = memoryview((200_000).to_bytes(4, "little") + b"a" * 199_999)
    with pytest.raises(ModelError, match="does not hold 1 whole elements"):
        written([AnswerOutput("O", "BYTES", (1,), raw)])


@pytest.mark.parametrize(
    ("count", "datatype", "values"),
    [
        (900, "INT32", np.arange(7500, dtype="<i4") + 2**30),
        (16, "FP64", np.random.default_rng(1).random(3000)),
        (1, "FP32", np.arange(8191, dtype="<f4") / 7),
        (900, "INT8", np.arange(2).astype("i1")),
        (300, "BOOL", np.zeros(3, dtype=bool)),
        (2, "BYTES", np.array(["\x01" * 300_000] * 2, dtype=object)),
    ],
)
def test_no_step_writes_much(
    count: int, datatype: str, values: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many outputs there are, and however small each is."""
    sizes = [0]
    slices = text_slices

    def counted(*args: Any) -> Any:
        sizes[-1] += LEAST_BYTES
        for part in slices(*args):
            sizes[-1] += len(part)
            yield part

    monkeypatch.setattr(large_json, "text_slices", counted)
    raw = memoryview(pack_bytes("O", values) if datatype == "BYTES" else values.tobytes())
    outputs = tuple(
        AnswerOutput(f"O{number}", datatype, (len(values),), raw) for number in range(count)
    )
    answer = InferAnswer("m", 1, "", outputs)
    call = InferCall("m", 1, "", (), ())
    assert slow_outputs(call, answer) == list(outputs)
    for _ in large_json._texts(outputs):
        sizes.append(0)
    slice_bytes = SLICE_ITEMS * 21 if datatype != "BYTES" else 6 * SLICE_BYTES_OUT
    assert max(sizes) <= STEP_TEXT_BYTES + slice_bytes
    assert sum(sizes) >= count * len(to_json("O", datatype, (len(values),), raw))
    body = answer_body(call, answer, to_json, written(outputs))
    assert b"".join(body.parts) == b"".join(answer_body(call, answer, to_json).parts)
    assert (len(body.parts) == 1) == (len(raw) < 100)


def test_usual_answers_are_written_at_once() -> None:
    """And binary ones, however large."""
    floats = memoryview(bytes(8000))
    small = InferAnswer("m", 1, "", (AnswerOutput("O", "FP32", (2000,), floats),))
    assert not slow_outputs(InferCall("m", 1, "", (), ()), small)
    texts = memoryview(b"\4\0\0\0text" * 1000)
    strings = InferAnswer("m", 1, "", (AnswerOutput("O", "BYTES", (1000,), texts),))
    assert not slow_outputs(InferCall("m", 1, "", (), ()), strings)
    large = InferAnswer("m", 1, "", (AnswerOutput("O", "FP32", (2000,), floats),) * 20)
    assert slow_outputs(InferCall("m", 1, "", (), ()), large)
    assert not slow_outputs(InferCall("m", 1, "", (), (), is_binary_by_default=True), large)
    asked = (CallOutput("O", is_binary=True),)
    assert not slow_outputs(InferCall("m", 1, "", (), asked), large)
    assert not slow_outputs(
        InferCall("m", 1, "", (), ()),
        InferAnswer("m", 1, "", (AnswerOutput("O", "FP32", (2**20,), None),) * 20),
    )

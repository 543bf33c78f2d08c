"""Classes of large outputs: the same as of small ones, a little in each turn of the event loop."""

from __future__ import annotations

import asyncio
import struct
import threading
from typing import Any, cast

import numpy as np
import pytest

from naiad.client.results import InferResult
from naiad.gateway import classification
from naiad.gateway.calls import AnswerOutput, CallOutput, InferAnswer, InferCall
from naiad.gateway.classification import (
    TEXT_BYTES_PER_STEP,
    TEXTS_PER_STEP,
    classified,
    classified_apart,
    is_light,
)
from naiad.gateway.known_classes import Classes
from naiad.gateway.long_work import LongWork
from naiad.gateway.lookups import Found
from naiad.gateway.pending import Outcome, Pending
from naiad.protocol.errors import RequestError

PLAIN = Classes("", False, {})
BATCHES = Classes("", True, {})
DATATYPES = {"f4": "FP32", "f8": "FP64", "i1": "INT8", "u8": "UINT64", "i8": "INT64"}


def output(values: Any) -> AnswerOutput:
    array = np.asarray(values)
    datatype = DATATYPES[array.dtype.str[1:]]
    return AnswerOutput("O", datatype, array.shape, memoryview(array.tobytes()))


def texts(found: AnswerOutput) -> list[str]:
    data, offset, items = bytes(found.data or b""), 0, []
    while offset < len(data):
        (length,) = struct.unpack_from("<I", data, offset)
        items.append(data[offset + 4 : offset + 4 + length].decode())
        offset += 4 + length
    return items


def one_by_one(values: Any, count: int, labels: list[str]) -> list[str]:
    """What is expected, by Python's own sorting."""
    found = []
    for row in values.tolist():
        numbers = sorted((-value, at) for at, value in enumerate(row) if value == value)
        order = [at for _, at in numbers]
        order += [at for at, value in enumerate(row) if value != value]
        for at in order[:count]:
            value = f"{row[at]:.6f}" if isinstance(row[at], float) else str(row[at])
            label = labels[at] if at < len(labels) else ""
            found.append(f"{value}:{at}" + (f":{label}" if label else ""))
    return found


@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "u8", "i8"])
@pytest.mark.parametrize("labels", [[], ["a", "", "c" * 3000, "ü"]])
def test_many_rows_at_once_are_what_each_alone_is(kind: str, labels: list[str]) -> None:
    dice = np.random.default_rng(5)
    values = dice.integers(0, 9, (700, 6)).astype(kind)
    if kind[0] == "f":
        values[dice.random(values.shape) < 0.2] = np.nan
        values[3] = [-0.0, 0.0, -np.inf, np.nan, np.inf, -1.5]
    else:
        limits = np.iinfo(kind)
        values[3] = [limits.min, limits.max, 0, limits.max, limits.min, 1]
    classes = Classes("", True, {"O": labels})
    for count in (1, 4, 9):
        found = asyncio.run(classified_apart(output(values), count, classes, LongWork()))
        assert found.shape == (700, min(count, 6))
        assert texts(found) == one_by_one(values, count, labels)
        assert classified(output(values), count, classes) == found


def test_no_step_writes_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor long ones; and the loop's own thread sorts nothing."""
    sorters: list[int] = []
    order = classification._order

    def watched(rows: Any, count: int) -> Any:
        sorters.append(threading.get_ident())
        return order(rows, count)

    monkeypatch.setattr(classification, "_order", watched)
    steps: list[tuple[int, int]] = []
    packed = classification._packed

    def counted(of: Any) -> bytes:
        found = packed(of)
        steps.append((found.count(b":"), len(found)))
        return found

    monkeypatch.setattr(classification, "_packed", counted)
    values = np.arange(50_000, dtype="f8").reshape(-1, 1)

    async def run(values: Any, classes: Classes, count: int) -> int:
        turns, is_over = 0, False

        async def other() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        await classified_apart(output(values), count, classes, LongWork())
        is_over = True
        await beside
        return turns

    assert asyncio.run(run(values, BATCHES, 1)) >= 50_000 // TEXTS_PER_STEP
    labels = Classes("", False, {"O": ["l" * 20_000] * 100})
    assert asyncio.run(run(values[:100, 0], labels, 100)) >= 100 * 20_000 // (
        TEXT_BYTES_PER_STEP + 20_000
    )
    assert asyncio.run(run(np.full(2000, -1e308), PLAIN, 2000)) >= 2000 * 315 // (
        TEXT_BYTES_PER_STEP + 400
    )
    assert max(count for count, _ in steps) <= TEXTS_PER_STEP
    assert max(size for _, size in steps) <= TEXT_BYTES_PER_STEP + 20_100
    assert len(sorters) == 3
    assert threading.get_ident() not in sorters


def test_texts_are_no_longer_than_an_answer_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "CLASSES_BYTES_MAX", 100_000)
    classes = Classes("", True, {"O": ["l" * 50]})
    values = np.zeros((2000, 1), "f4")
    with pytest.raises(RequestError, match=r"'O': 2000 texts .* more than 100000 bytes .* fewer"):
        classified(output(values), 1, classes)


@pytest.mark.parametrize(
    ("shape", "count", "batches", "expected"),
    [
        ((8, 1000), 5, True, True),
        ((1000,), 5, False, True),
        ((2000, 1), 1, True, False),
        ((2000, 1), 1, False, True),
        ((20_000,), 1, False, False),
        ((2000,), 2000, False, False),
    ],
)
def test_what_is_classified_at_once(
    shape: tuple[int, ...], count: int, batches: bool, expected: bool
) -> None:
    one = output(np.zeros(shape, "f4"))
    classes = Classes("", batches, {})
    assert is_light([(one, count)], classes) is expected
    assert is_light([(one, 0)], classes)
    assert not is_light([(one, count)] * 100, classes)


class Result:
    version = 1
    parameters: dict[str, Any] = {}  # noqa: RUF012 - never written to

    def __init__(self, values: Any) -> None:
        self._values = values

    def raw(self, elsewhere: set[str] = set()) -> list[AnswerOutput]:  # noqa: B006
        return [output(self._values)]


@pytest.mark.parametrize("count", [10, 5000])
def test_an_answer_waits_for_its_classes(count: int) -> None:
    """A small one does not; and who goes away meanwhile is not answered."""

    async def run(is_cancelled: bool) -> list[Outcome]:
        nothing = cast("Any", None)
        call = InferCall("m", 1, "", (), (CallOutput("O", classification=2),))
        outcomes: list[Outcome] = []
        ends: list[int] = []
        pending = Pending(
            nothing, nothing, LongWork(), call, outcomes.append, lambda: ends.append(1)
        )
        pending._found = Found({}, BATCHES)
        pending.set_result(cast("InferResult", Result(np.zeros((count, 3), "f4"))))
        assert len(outcomes) == (count == 10)
        task = pending._task
        if is_cancelled:
            pending.cancel()
        if task is not None:
            await asyncio.wait([task])
        assert ends == [1]
        return outcomes

    (found,) = asyncio.run(run(False))
    assert isinstance(found, InferAnswer)
    assert texts(found.outputs[0]) == ["0.000000:0", "0.000000:1"] * count
    assert len(asyncio.run(run(True))) == (count == 10)

"""The classification extension: an output's largest values instead of the output, for both skins.

As Triton has it, with one addition: NaN comes last. What takes long is sorted in a thread, where
NumPy lets the event loop run, and written in steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from naiad.client.tensors import array_of
from naiad.gateway.calls import AnswerOutput
from naiad.gateway.known_classes import Classes
from naiad.gateway.long_work import LongWork, Steps, at_once
from naiad.protocol.datatypes import LENGTH_PREFIX_BYTES, element_count
from naiad.protocol.errors import RequestError

ELEMENTS_MAX: Final = 1_000_000
CLASSES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an output's classes: as much as an output in JSON."""
LIGHT_COST: Final = 1024
"""Of an answer that is classified at once: 1 ms. A text counts one."""
_OUTPUT_COST: Final = 16
_ELEMENTS_PER_COST: Final = 16
TEXTS_PER_STEP: Final = 512
"""1 ms."""
TEXT_BYTES_PER_STEP: Final = 64 * 1024
TEXT_BYTES: Final = 32
"""Of a usual one, as it is counted among what is under way."""
_UNSUPPORTED: Final = ("FP16", "BF16", "BYTES", "BOOL")


class _Task(NamedTuple):
    """An output as it is to be classified."""

    name: str
    rows: Any
    most: int
    shape: tuple[int, ...]
    labels: Sequence[str]


def is_light(wanted: list[tuple[AnswerOutput, int]], classes: Classes) -> bool:
    """Whether so many classes of these outputs take a millisecond at most."""
    cost = 0
    for output, count in wanted:
        if count:
            elements = element_count(output.shape)
            rows = output.shape[0] if classes.batches and output.shape else 1
            cost += _OUTPUT_COST + min(rows * count, elements) + elements // _ELEMENTS_PER_COST
    return cost <= LIGHT_COST


def classified(output: AnswerOutput, count: int, classes: Classes) -> AnswerOutput:
    """The `count` largest values of each item of the batch as BYTES "value:index[:label]".

    Raises RequestError for datatypes without an order, and too many elements or texts.
    """
    task = _task(output, count, classes)
    return at_once(_written(task, _order(task.rows, task.most)))


async def classified_apart(
    output: AnswerOutput, count: int, classes: Classes, long_work: LongWork
) -> AnswerOutput:
    """The same of a large output, for which others need not wait. Raises Unavailable too."""
    task = _task(output, count, classes)
    order = await long_work.in_thread(partial(_order, task.rows, task.most))
    return await long_work.run(order.size * TEXT_BYTES, _written(task, order))


def _task(output: AnswerOutput, count: int, classes: Classes) -> _Task:
    if output.datatype in _UNSUPPORTED:
        raise RequestError(
            "class result not available for output due to unsupported type"
            f" '{output.datatype}': '{output.name}'"
        )
    assert output.data is not None, "classification and shared memory exclude each other"
    values = array_of(output.datatype, output.shape, output.data, copy=False)
    if values.size > ELEMENTS_MAX:
        raise RequestError(
            f"classification of output '{output.name}': {values.size} elements, expected at most"
            f" {ELEMENTS_MAX}"
        )
    is_batch = classes.batches and len(output.shape) > 0
    rows = (
        values.reshape(output.shape[0], -1) if is_batch and values.size else values.reshape(1, -1)
    )
    count = min(count, rows.shape[1])
    shape = (output.shape[0], count) if is_batch else (count,)
    return _Task(output.name, rows, count, shape, classes.labels.get(output.name, ()))


def _order(rows: Any, count: int) -> Any:
    """Of each row the indexes of the largest values, descending; of equal ones the first first,
    NaN last."""
    # A stable ascending order of what is turned around. Integers cannot all be negated.
    turned = np.negative(rows) if rows.dtype.kind == "f" else np.invert(rows)
    return np.argsort(turned, axis=1, kind="stable")[:, :count]


def _written(task: _Task, order: Any) -> Steps[AnswerOutput]:
    """The texts. Raises RequestError when they are too long."""
    found = bytearray()
    for texts in _slices(task, order):
        found += texts
        if len(found) > CLASSES_BYTES_MAX:
            raise RequestError(
                f"classification of output '{task.name}': {order.size} texts of more than"
                f" {CLASSES_BYTES_MAX} bytes together, expected at most that; ask for fewer classes"
            )
        yield
    return AnswerOutput(task.name, "BYTES", task.shape, memoryview(found))


def _slices(task: _Task, order: Any) -> Iterator[bytes]:
    rows, labels = task.rows, task.labels
    form = "{:.6f}:{}" if rows.dtype.kind == "f" else "{}:{}"
    indexes = order.reshape(-1)
    for start in range(0, indexes.size, TEXTS_PER_STEP):
        some = indexes[start : start + TEXTS_PER_STEP]
        # Of one row, which is usual, without as many row numbers.
        row_of = np.arange(start, start + some.size) // task.most if len(rows) > 1 else 0
        values = rows[row_of, some]
        texts: Iterator[str] = map(form.format, values.tolist(), some.tolist())
        if labels:
            texts = _labelled(texts, some.tolist(), labels)
        while part := _packed(texts):
            yield part


def _labelled(texts: Iterator[str], indexes: list[int], labels: Sequence[str]) -> Iterator[str]:
    label_count = len(labels)
    for text, index in zip(texts, indexes, strict=True):
        label = labels[index] if index < label_count else ""
        yield f"{text}:{label}" if label else text


def _packed(texts: Iterator[str]) -> bytes:
    """Those that come next, as BYTES elements: not many more than a step may have."""
    parts: list[bytes] = []
    size = 0
    for text in texts:
        item = text.encode()
        parts += (len(item).to_bytes(LENGTH_PREFIX_BYTES, "little"), item)
        size += len(item)
        if size >= TEXT_BYTES_PER_STEP:
            break
    return b"".join(parts)

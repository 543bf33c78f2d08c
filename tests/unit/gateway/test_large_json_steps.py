"""How much of large JSON is looked at in one step, and what is refused before it is looked at."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from naiad.gateway import json_slices, large_json
from naiad.gateway.calls import AnswerOutput
from naiad.gateway.http_request import Inputs
from naiad.gateway.json_slices import (
    ARRAYS_MAX,
    BRACKETS_MAX,
    REST_BYTES_MAX,
    SLICE_BYTES,
    SLICE_MARKS_MAX,
    cut_out,
)
from naiad.gateway.large_json import (
    INPUTS_PER_STEP,
    LIGHT_BYTES,
    TEXT_BYTES_MIN,
    LargeJson,
    is_light,
)
from naiad.gateway.long_work import UNDER_WAY_BYTES_MAX, LongWork
from naiad.protocol.errors import RequestError, Unavailable
from support.large_json import FLOATS, LIMIT, at_once, body, cut, in_slices, noted_sizes


def test_what_is_no_array_is_bounded() -> None:
    digits = b'{"inputs":' + b"1" * (REST_BYTES_MAX + 1)
    many = b'{"inputs":[' + b'{"data":[1]},' * (ARRAYS_MAX + 1) + b"]}"
    for text, limit in ((digits, REST_BYTES_MAX), (many, ARRAYS_MAX)):
        with pytest.raises(RequestError, match=str(limit)):
            in_slices(text)


@pytest.mark.parametrize(
    "data",
    [
        '["' + "x" * 1_000_000 + '"]',
        '["' + "\\\\" * 500_000 + '"]',
        "[1" + " " * 1_000_000 + "]",
        "[" * 90 + "1" * 1_000_000 + "]" * 90,
        "[1," * 90 + "1" * 1_000_000,
    ],
    ids=lambda data: f"{data[:6]}..{data[-8:]}",
)
def test_nothing_is_looked_at_in_long_pieces_or_often(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    look = json_slices.without_strings

    def looking(window: bytes, *more: Any) -> Any:
        sizes.append(len(window))
        return look(window, *more)

    monkeypatch.setattr(json_slices, "without_strings", looking)
    text = body(data, "BYTES", 1)
    cut(text)
    assert max(sizes) <= SLICE_BYTES
    assert sum(sizes) <= 2 * len(text)


def test_deep_nesting_is_refused_where_it_begins() -> None:
    for data in ("[" * 100_000 + "]" * 100_000, "[1," * 100_000):
        steps = cut_out(memoryview(body(data)), "mark")
        with pytest.raises(RequestError, match="nested too deeply"):
            next(steps)


def test_much_beside_the_arrays_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = noted_sizes(monkeypatch)
    keys = ",".join(f'"{number}":1' for number in range(100_000))
    for more in (f'"parameters":{{{keys}}}', f'"outputs":[{",".join(["{}"] * 400_000)}]'):
        with pytest.raises(RequestError, match="besides arrays of 'data'"):
            in_slices(body("[1]", more="," + more))
    assert sizes == []


@pytest.mark.parametrize(
    "element", ["1", '""', "[1]", '"\\""', "[" * 50 + "1" + "]" * 50, "0.123456", '[["a"],["b"]]']
)
def test_short_elements_make_short_slices(element: str) -> None:
    """They cost far more than their bytes."""
    text = body("[" + ",".join([element] * (400_000 // len(element))) + "]")
    (slices,) = cut(text).taken.values()
    parts = [text[one.start : one.end] for one in slices]
    assert max(map(len, parts)) <= SLICE_BYTES
    marks = [part.count(b",") + part.count(b'"') + part.count(b"[") for part in parts]
    assert max(marks[:-1]) <= SLICE_MARKS_MAX
    assert max(part.count(b"[") for part in parts) <= BRACKETS_MAX
    assert len(parts) <= 4 * max(len(text) // SLICE_BYTES, sum(marks) // SLICE_MARKS_MAX)


def test_inputs_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [0]

    class Counted:
        def __init__(self, *given: Any) -> None:
            self._inputs = Inputs(*given)
            self.check_end = self._inputs.check_end

        def input(self, found: Any) -> Any:
            counts[-1] += 1
            return self._inputs.input(found)

    monkeypatch.setattr(large_json, "Inputs", Counted)
    tensor = '{"name":"I","datatype":"INT32","shape":[1],"data":[5]}'
    text = f'{{"inputs":[{",".join([tensor] * 1000)}]}}'.encode()
    steps = large_json.call_in_steps("m", 1, text, len(text), LIMIT, None)
    for _ in steps:
        counts.append(0)
    assert sum(counts) == 1000
    assert max(counts) <= INPUTS_PER_STEP


@pytest.mark.parametrize(
    ("text", "light"),
    [
        (b'{"inputs":[' + b"{}," * 100, True),
        (b"1," * 8000, True),
        (b"1," * 8200, False),
        (b"[" * 8200, False),
        (b'"a":1,' * 1600, True),
        (b'"a":1,' * 1700, False),
        (b'{"name":""},' * 400, False),
        (b"0.123456," * 7000, True),
        (b"x" * (TEXT_BYTES_MIN - 1), True),
        (b"x" * TEXT_BYTES_MIN, False),
    ],
    ids=lambda given: str(given[:12]) if isinstance(given, bytes) else str(given),
)
def test_what_is_read_at_once_is_soon_read(text: bytes, light: bool) -> None:
    for given in (text, memoryview(text + b"[" * 10_000)):
        assert is_light(given, len(text)) is light
    assert is_light(b"{" * LIGHT_BYTES, LIGHT_BYTES)


def test_others_run_between_slices_and_what_is_cancelled_is_forgotten() -> None:
    text = body(json.dumps(FLOATS))

    async def run() -> None:
        large = LargeJson(LongWork())
        turns = 0
        works = [
            asyncio.ensure_future(large.call("m", 1, text, len(text), LIMIT, None))
            for _ in range(3)
        ]
        while not any(one.done() for one in works[1:]):
            await asyncio.sleep(0)
            turns += 1
            works[0].cancel()
        assert turns > 2 * len(text) / SLICE_BYTES
        assert await works[1] == await works[2] == at_once(text)
        assert works[0].cancelled()
        whole = memoryview(bytes(1)).cast("B")
        fits = asyncio.ensure_future(large.texts([AnswerOutput("O", "UINT8", (1,), whole)]))
        assert await fits == {"O": [b"[0", b"]"]}

    asyncio.run(run())


def test_there_is_a_limit_of_what_is_under_way() -> None:
    async def run() -> None:
        large = LargeJson(LongWork())
        text = body(json.dumps(FLOATS))
        first = asyncio.ensure_future(large.call("m", 1, text, len(text), LIMIT, None))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="use binary data"):
            await large.call("m", 1, text, UNDER_WAY_BYTES_MAX, LIMIT, None)
        assert await first == at_once(text)
        assert await large.call("m", 1, text, len(text), LIMIT, None) == at_once(text)

    asyncio.run(run())

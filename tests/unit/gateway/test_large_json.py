"""JSON read and written in slices comes to the same as at once, faults included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from naiad.client.tensors import pack_bytes
from naiad.gateway import json_slices, large_json
from naiad.gateway.calls import AnswerOutput, CallOutput, InferAnswer, InferCall
from naiad.gateway.http_answer import answer_body
from naiad.gateway.http_infer import slow_outputs
from naiad.gateway.http_request import Inputs, infer_call
from naiad.gateway.json_slices import (
    ARRAYS_MAX,
    BRACKETS_MAX,
    REST_BYTES_MAX,
    SLICE_BYTES,
    SLICE_MARKS_MAX,
    WHOLE_BYTES_MAX,
    Cut,
    Slice,
    cut_out,
)
from naiad.gateway.json_tensors import SLICE_BYTES as SLICE_BYTES_OUT
from naiad.gateway.json_tensors import SLICE_ITEMS, from_json, text_slices, to_json
from naiad.gateway.large_json import (
    INPUTS_PER_STEP,
    LIGHT_BYTES,
    STEP_TEXT_BYTES,
    TEXT_BYTES_MIN,
    LargeJson,
    is_light,
)
from naiad.gateway.long_work import UNDER_WAY_BYTES_MAX, LongWork
from naiad.protocol.errors import ModelError, RequestError, Unavailable
from support.steps import ended

LIMIT = 1 << 26
LEAST_BYTES = 64
"""Of the work that an output is, whatever is in it."""
FLOATS = [number / 8 for number in range(40_000)]
STRINGS = ['"', "\\", '","', "],[", "\\\\", "é", "", '\\"', "[1,2]", ', "', "plain", "x" * 300]


def body(data: str, datatype: str = "FP32", count: int = 40_000, more: str = "") -> bytes:
    tensor = f'{{"name":"I","datatype":"{datatype}","shape":[{count}],"data":{data}}}'
    return f'{{"id":"5","inputs":[{tensor}]{more}}}'.encode()


def at_once(text: bytes, behind: bytes = b"") -> InferCall:
    return infer_call("m", 1, text + behind, len(text), from_json, LIMIT)


def in_slices(text: bytes, behind: bytes = b"") -> InferCall:
    whole = memoryview(text + behind)
    return asyncio.run(LargeJson(LongWork()).call("m", 1, whole, len(text), LIMIT, None))


def written(outputs: Sequence[AnswerOutput]) -> dict[str, list[bytes]]:
    return asyncio.run(LargeJson(LongWork()).texts(outputs))


def cut(text: bytes) -> Cut[list[Slice]]:
    return ended(cut_out(memoryview(text), "mark"))[0]


def noted_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of all texts that the parser is given from now on."""
    sizes: list[int] = []
    parse = json.loads

    def parsing(text: str) -> Any:
        sizes.append(len(text))
        return parse(text)

    monkeypatch.setattr(json, "loads", parsing)
    return sizes


def rows(values: list[Any], length: int) -> list[Any]:
    return [values[start : start + length] for start in range(0, len(values), length)]


@pytest.mark.parametrize("form", [None, 1, "tight"], ids=["usual", "indented", "tight"])
@pytest.mark.parametrize(
    "data",
    [
        FLOATS,
        [FLOATS],
        [[[one]] for one in FLOATS],
        rows(FLOATS, 3),
        [rows(FLOATS[:20_000], 7), rows(FLOATS[20_000:], 20_000)],
        [*FLOATS[:-3], float("nan"), float("inf"), -1e-40],
    ],
    ids=["flat", "one row", "columns", "rows", "uneven lengths", "words"],
)
def test_numbers(data: list[Any], form: int | str | None) -> None:
    tight = (",", ":") if form == "tight" else None
    indent = form if isinstance(form, int) else None
    text = body(json.dumps(data, indent=indent, separators=tight))
    (slices,) = cut(text).taken.values()
    assert len(slices) > 1
    assert max(one.end - one.start for one in slices) <= SLICE_BYTES
    assert in_slices(text) == at_once(text)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("INT64", [-(2**63), 2**63 - 1, 0, 7]),
        ("UINT8", [0, 255]),
        ("BOOL", [True, False]),
        ("FP64", [0.1, 1, -1e300]),
    ],
)
def test_other_types(datatype: str, values: list[Any]) -> None:
    text = body(json.dumps(values * (60_000 // len(values))), datatype, 60_000)
    assert len(cut(text).taken) == 1
    assert in_slices(text) == at_once(text)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_ascii", [True, False])
def test_strings_whatever_is_in_them(seed: int, is_ascii: bool) -> None:
    random = Random(seed)
    values = random.choices(STRINGS, k=20_000)
    data = rows(values, 5) if seed % 2 else values
    text = body(json.dumps(data, ensure_ascii=is_ascii), "BYTES", 20_000)
    (slices,) = cut(text).taken.values()
    assert len(slices) > 2
    assert in_slices(text) == at_once(text)


def test_one_long_string_stays_whole() -> None:
    text = body(json.dumps(["ab,]" * 100_000, "c"]), "BYTES", 2)
    assert in_slices(text) == at_once(text)


def test_several_inputs_parameters_and_binary_data() -> None:
    def tensor(name: str, field: str) -> str:
        return f'{{"name":"{name}","datatype":"FP32","shape":[40000],{field}}}'

    array = f'"data" : {json.dumps(FLOATS)}'
    binary = '"parameters":{"binary_data_size":160000}'
    named = tensor('\\"data\\":[', array)
    given = [tensor("A", array), tensor("B", binary), named, tensor("C", array)]
    more = '"parameters":{"mine":"\\"data\\":[1,2","priority":3},"outputs":[{"name":"O"}]'
    text = f'{{"inputs":[{",".join(given)}],{more}}}'.encode()
    behind = np.arange(40_000, dtype="<f4").tobytes()
    assert len(cut(text).taken) == 3
    assert in_slices(text, behind) == at_once(text, behind)


@pytest.mark.parametrize(
    "data",
    [
        "[1.5,,2" + ",3" * 50_000 + "]",
        "[1.5" + ",3" * 50_000 + ",]",
        "[" + "3," * 50_000 + ",4]",
        "[" + "3," * 50_000 + "04]",
        "[" + "3," * 50_000 + "x]",
        "[" + "3," * 50_000,
        "[" + "3," * 50_000 + "4]]",
        "[[" + "3," * 50_000 + "4]",
        "[" + "3," * 50_000 + "4}",
        "[" * 200 + "3," * 50_000 + "4" + "]" * 200,
        "[" * 70_000,
        "[[" + "3," * 50_000 + "4]," + "[4],5]",
        "[" + "3," * 50_000 + "[4]]",
        "[" + "3," * 50_000 + '"4"]',
        "[" + "3," * 50_000 + "true]",
        "[" + "3," * 50_000 + '{"a":1,"b":2}]',
        "[" + "3," * 50_000 + '"a\nb"]',
        "[" + '"\\q",' * 50_000 + '"4"]',
        "[" + "3," * 50_000 + "4],5",
        "[" + "3," * 50_000 + "4] 5",
        "[" + "3," * 20_000 + "4]",
    ],
    ids=lambda data: f"{data[:6]}..{data[-8:]}",
)
def test_what_cannot_be_read_is_refused_as_at_once(data: str) -> None:
    text = body(data, count=50_001)
    with pytest.raises(RequestError):
        at_once(text)
    with pytest.raises(RequestError):
        in_slices(text)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (body("[" + "3," * 50_000 + "x]"), "3,x"),
        (body("[" + "3," * 50_000 + "4]", more=",?"), ",?"),
    ],
)
def test_faults_say_where(text: bytes, at: str) -> None:
    with pytest.raises(RequestError) as whole:
        at_once(text)
    with pytest.raises(RequestError) as sliced:
        in_slices(text)
    assert sliced.value.message == whole.value.message
    assert int(whole.value.message.split()[-1]) == text.index(at.encode()) + len(at) - 1


def test_ranges_counts_and_types_are_told_as_at_once() -> None:
    for datatype, data, count in (
        ("UINT8", [1] * 50_000 + [256], 50_001),
        ("UINT8", [1] * 50_000, 50_001),
        ("FP32", [1] * 50_000, 49_999),
        ("FP32", [1] * 50_000 + [None], 50_001),
        ("FP16", [1] * 50_000, 50_000),
    ):
        text = body(json.dumps(data), datatype, count)
        with pytest.raises(RequestError) as whole:
            at_once(text)
        with pytest.raises(RequestError) as sliced:
            in_slices(text)
        assert sliced.value.message == whole.value.message


def test_what_is_no_array_is_bounded() -> None:
    digits = b'{"inputs":' + b"1" * (REST_BYTES_MAX + 1)
    many = b'{"inputs":[' + b'{"data":[1]},' * (ARRAYS_MAX + 1) + b"]}"
    for text, limit in ((digits, REST_BYTES_MAX), (many, ARRAYS_MAX)):
        with pytest.raises(RequestError, match=str(limit)):
            in_slices(text)


def test_many_inputs_of_any_length_are_read() -> None:
    tensor = '{"name":"I","datatype":"INT32","shape":[%d],"data":[%s]}'
    inputs = [tensor % (count, ",".join(["1234567"] * count)) for count in range(3, 4000, 5)]
    text = f'{{"inputs":[{",".join(inputs)}]}}'.encode()
    assert len(text) > 10 * 1024 * 1024
    assert len(cut(text).rest) < REST_BYTES_MAX
    assert in_slices(text) == at_once(text)


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize(
    "string", ["\\\\" * 90_000, '\\"' * 90_000, '\\\\\\",],[' * 30_000, "[,]" * 70_000]
)
def test_long_strings_with_anything_in_them(string: str, before: int) -> None:
    """Wherever in an escape a slice's worth of text ends."""
    text = body(f'["{"x" * before}{string}", "b", "{string}"]', "BYTES", 3)
    assert len(cut(text).taken) == 1
    assert in_slices(text) == at_once(text)


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


LONG = 'é"\\,[]😀' * 40_000


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        [LONG],
        [[LONG], ["a"]],
        ["a", LONG, "b", "c"],
        [LONG, LONG + "x", "", LONG],
        [["a", "b", LONG], [LONG, "c", "d"]],
        [[["a"], [LONG]], [["b"], [LONG]]],
        ["x" * 65_536, "b", "x" * 131_071, "c", "x" * 131_072, "d", "x" * 196_607, "e"],
    ],
    ids=lambda data: f"{len(data)}",
)
def test_long_strings_are_read_in_pieces(
    data: list[Any], is_ascii: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = data
    while isinstance(flat[0], list):
        flat = [one for inner in flat for one in inner]
    text = body(json.dumps(data, ensure_ascii=is_ascii), "BYTES", len(flat))
    expected = at_once(text)
    sizes = noted_sizes(monkeypatch)
    assert in_slices(text) == expected
    assert max(sizes) <= WHOLE_BYTES_MAX + 2


@pytest.mark.parametrize(
    "data",
    [
        '["' + "x" * 300_000 + '" , ]',
        '["' + "x" * 300_000 + '" "y"]',
        '["' + "x" * 300_000 + "]",
        '["' + "x" * 300_000 + '\\"]',
        '["' + "\\" * 300_001 + '"]',
        '["' + "x" * 300_000 + '"}',
        '["' + "x" * 100_000 + "\n" + "x" * 200_000 + '"]',
        '[{"' + "x" * 300_000 + '":1}]',
        '["' + "x" * 300_000 + '\\ud800"]',
        '["' + "x" * 300_000 + '",5]',
        '["' + "x" * 300_000 + '",["y"]]',
        "[" + "1" * 300_000 + "]",
        "[1" + " " * 300_000 + ",]",
        "[" + " " * 300_000 + ",1]",
        '["' + "x" * 300_000 + '"' + " " * 300_000 + ",]",
        "[0." + "1" * 300_000 + "]",
    ],
    ids=lambda data: f"{data[:3]}..{data[-8:]}",
)
def test_long_elements_that_are_none_are_refused(data: str) -> None:
    for count in (1, 2):
        with pytest.raises(RequestError):
            in_slices(body(data, "BYTES", count))


def test_what_follows_a_long_string_is_none_of_it() -> None:
    """Wherever its end is in a window."""
    for size in range(131_066, 131_074):
        text = body(json.dumps(["x" * size, "b", "c"], separators=(",", ":")), "BYTES", 3)
        assert in_slices(text) == at_once(text)


def test_a_long_string_is_no_number() -> None:
    with pytest.raises(RequestError, match="is FP32, expected numbers, got a string"):
        in_slices(body('["' + "x" * 300_000 + '"]', "FP32", 1))
    with pytest.raises(RequestError, match="which is 2 elements, got 1"):
        in_slices(body('["' + "x" * 300_000 + '"]', "BYTES", 2))


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


# --- answers -------------------------------------------------------------------------------------


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


# --- turns ---------------------------------------------------------------------------------------


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


ONES = ",".join(["1"] * 40_000)
ROOM = " " * 140_000
NAMED = '"name":"I","datatype":"INT32","shape":[1]'


def said(read: Callable[[bytes], Any], text: bytes) -> str:
    with pytest.raises(RequestError) as found:
        read(text)
    return found.value.message


@pytest.mark.parametrize(
    "text",
    [
        body("[" + ROOM + "1]", "INT32", 1),
        body("[1" + ROOM + "]", "INT32", 1),
        body("[" + ROOM + "]", "INT32", 0),
        body("[" + (",\n" + "\t" * 200).join(["1"] * 1000) + "]", "INT32", 1000),
        body("[" + (" " * 129 + ",").join(["[1]"] * 2000) + "]", "INT32", 2000),
        body(json.dumps(json.loads("[" * 90 + ONES + "]" * 90), indent=4), "INT32"),
        body(f'["{ROOM}",{ROOM}"b\\"{ROOM}",{ROOM}"{ROOM}"]', "BYTES", 3),
        ROOM.encode()
        + body("[1]", "INT32", 1, "," + ROOM)[:-1]
        + b'"a"'
        + (ROOM * 2).encode()
        + b":1}"
        + (ROOM * 3).encode(),
        body(f"[{ONES}]", "INT32") + b" " * 300_000,
    ],
    ids=lambda given: str(len(given)),
)
def test_long_runs_of_spaces_mean_nothing(text: bytes) -> None:
    assert in_slices(text) == at_once(text)


@pytest.mark.parametrize("gap", ["", " " * 127, " " * 128, ROOM, ("\t" + " " * 500) * 9])
@pytest.mark.parametrize("wrong", ["x", ",", "1 1", '"\\x"'])
@pytest.mark.parametrize("place", ["data", "behind", "before"])
def test_places_are_those_before_spaces_were_left_out(place: str, wrong: str, gap: str) -> None:
    here = {name: gap + wrong + gap if name == place else gap + "1" for name in PLACES}
    data = f"[{gap}1,{gap}{here['data']},{ONES}]"
    inputs = f'"inputs":[{{{NAMED},"data":{gap}{data}}}]'
    text = f'{{{gap}"a":{here["before"]},{inputs},"b":{here["behind"]}}}'
    assert said(in_slices, text.encode()) == said(at_once, text.encode())


PLACES = ("data", "behind", "before")


@pytest.mark.parametrize(
    "form",
    [
        '{"foo":{"data":[%s]},"inputs":[]}',
        '{"inputs":[{"data":[%s],"name":"I","datatype":"INT32","shape":[1],"data":[1]}]}',
        '{"inputs":[],"outputs":[{"name":"O","data":[%s]}]}',
        '{"inputs":[],"parameters":{},"parameters":{"data":[1]},"data":[%s],"parameters":{}}',
        '{"inputs":[{"data":[%s]}],"inputs":[]}',
    ],
)
def test_an_array_that_nobody_wants_has_to_be_one(form: str) -> None:
    legal = (form % ONES).encode()
    assert in_slices(legal) == at_once(legal)
    string = '"' + "x" * 300_000 + '"'
    for wrong in (ONES + ",x", "x," + ONES, ONES + " 1", ONES + ",", string[:-3] + '\\x",1'):
        text = (form % wrong).encode()
        assert said(in_slices, text) == said(at_once, text)
    in_slices((form % f"[{ONES}],2,{string}").encode())


@pytest.mark.parametrize(
    "data",
    [
        f"[{ONES}",
        f"[{ONES},1 1]",
        f"[1,[2,{ONES},3]",
        f"[[1,2],[3,4,[{ONES}]]",
        f"[1,2[,{ONES}]",
        f"[{ONES}}}]",
        f'[{ONES},"a":[{ONES}]',
    ],
    ids=lambda given: given[:4] + given[-6:],
)
def test_an_array_that_is_none_is_wrong_where_it_was(data: str) -> None:
    text = b'{"inputs":[{"data":' + data.encode() + b",%s}]}" % NAMED.encode()
    assert said(in_slices, text) == said(at_once, text)


@pytest.mark.parametrize("count", [ARRAYS_MAX - 1, ARRAYS_MAX])
def test_as_many_arrays_are_read_as_a_call_may_have_inputs(count: int) -> None:
    one = '{"name":"I","datatype":"INT32","shape":[1],"data":[1]}'
    text = f'{{"inputs":[{",".join([one] * count)}]}}'.encode()
    assert in_slices(text) == at_once(text)


def test_what_is_quoted_is_what_came() -> None:
    for datatype in ("INT32", "BOOL", "FP64"):
        text = body('["' + "x" * 300_000 + '"]', datatype, 1)
        assert said(in_slices, text) == said(at_once, text)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + ONES.encode() + b"]",
        b'"' + b"x" * 70_000 + b'"',
        "\ufeff{}".encode() + b" " * 70_000,
    ],
    ids=lambda given: str(given[:3]),
)
def test_what_is_no_object_is_named(text: bytes) -> None:
    assert said(in_slices, text) == said(at_once, text)


def test_long_strings_beside_arrays_are_read_by_who_knows_them() -> None:
    for key, value in (("id", '"%s"'), ("meta", '"%s"'), ("parameters", '{"p":"%s"}')):
        more = f',"{key}":{value % ("x" * 100_000)}'
        text = body(f"[{ONES}]", "INT32", 40_000, more).replace(b'"id":"5",', b"")
        assert in_slices(text) == at_once(text)

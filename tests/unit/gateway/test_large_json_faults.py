"""JSON that is read in slices is refused as at once, in the same words and places."""

from __future__ import annotations

import json

import pytest

from naiad.protocol.errors import RequestError
from support.large_json import ONES, at_once, body, in_slices, said

NAMED = '"name":"I","datatype":"INT32","shape":[1]'


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

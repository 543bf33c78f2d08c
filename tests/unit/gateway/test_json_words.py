"""Triton's words in JSON: what they mean, that strings keep theirs, and where faults are."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.gateway.json_members import members
from naiad.gateway.json_slices import SLICE_BYTES
from naiad.gateway.json_words import loads, raw_decode
from support.large_json import at_once, body, in_slices, noted_sizes, said
from support.steps import ended

WORDS = {"Inf": math.inf, "-Inf": -math.inf, "Infinity": math.inf, "-Infinity": -math.inf}
NANS = ("NaN", "-NaN")
PLAIN: dict[str, Any] = {"1": 1, "-2.5": -2.5, '"Inf"': "Inf", '"\\"-NaN"': '"-NaN', "null": None}
PLAIN |= {'"\\\\"': "\\", '"é, Inf"': "é, Inf", '"x\\\\\\""': 'x\\"'}


@pytest.mark.parametrize("word", WORDS)
def test_infinite(word: str) -> None:
    assert loads(word) == WORDS[word]
    assert loads(f' [{word} , [{word}],{{"a":{word}}}]') == [
        WORDS[word],
        [WORDS[word]],
        {"a": WORDS[word]},
    ]


@pytest.mark.parametrize("word", NANS)
def test_no_number(word: str) -> None:
    assert math.isnan(loads(word))
    assert math.isnan(loads(f"[Inf,{word}]")[1])


@given(st.lists(st.sampled_from([*WORDS, *PLAIN])), st.sampled_from(["", " ", "\n\t"]))
def test_arrays_of_all_that(items: list[str], space: str) -> None:
    text = "[" + f"{space},{space}".join(items) + "]"
    expected = [{**WORDS, **PLAIN}[item] for item in items]
    assert loads(text) == expected
    assert raw_decode(text + ",Inf") == (expected, len(text))


@pytest.mark.parametrize("wrong", ["+Inf", "inf", "INF", "In", "Infinit", "--Inf", "-+Inf", "nan"])
@pytest.mark.parametrize("before", ["", "1,", "Inf,", "-NaN,Infinity,-Inf,", '"Inf","é\\"",Inf,'])
def test_other_words_are_refused_where_they_are(before: str, wrong: str) -> None:
    text = f"[{before}{wrong},Inf]"
    with pytest.raises(json.JSONDecodeError) as refused:
        loads(text)
    first = 1 + len(before)
    assert first <= refused.value.pos <= first + len(wrong)
    with pytest.raises(json.JSONDecodeError) as left:
        raw_decode(text)
    assert left.value.pos == refused.value.pos


@pytest.mark.parametrize("fault", ["?", "Inf", '"'])
@given(st.lists(st.sampled_from([*WORDS, *NANS, *PLAIN]), min_size=1))
def test_faults_are_told_where_they_were(fault: str, items: list[str]) -> None:
    text = f"[{','.join(items)} {fault}"
    with pytest.raises(json.JSONDecodeError, match="Expecting ',' delimiter") as refused:
        loads(text)
    assert refused.value.pos == len(text) - len(fault)
    assert refused.value.doc == text


def test_a_byte_order_mark_is_passed_over() -> None:
    assert loads('\ufeff{"a":Inf}') == {"a": math.inf}
    assert loads("\ufeff1") == 1
    text = '\ufeff{"a":[1,2],"b":Inf}'
    assert ended(members(text, frozenset("ab")))[0] == {"a": [1, 2], "b": math.inf}
    for wrong in ("\ufeff", "\ufeff\ufeff1", "[\ufeff1]"):
        with pytest.raises(json.JSONDecodeError) as refused:
            loads(wrong)
        assert refused.value.pos == 1
    mark = "\ufeff".encode()
    short, long = body("[1]", count=1), body("[" + "1," * 39_999 + "Inf]")
    assert at_once(mark + short) == at_once(short)
    assert in_slices(mark + long) == at_once(mark + long) == at_once(long)


def spelled(text: bytes) -> bytes:
    return text.replace(b"Inf", b"Infinity").replace(b"-NaN", b"NaN")


@pytest.mark.parametrize(
    "words", [["Inf"], ["1.25", "-Inf", "NaN", "-NaN"], ["[Inf,1]", "[-NaN,2]"]]
)
def test_tensors_that_are_read_in_slices(words: list[str]) -> None:
    count = 40_000 * (1 + words[0].count(","))
    short = '{"name":"J","datatype":"FP64","shape":[3],"data":[Inf,-Inf,-NaN]}'
    text = body("[" + ",".join(words * (40_000 // len(words))) + "]", count=count)
    text = text.replace(b'"inputs":[', b'"parameters":{"a":Inf},"inputs":[' + short.encode() + b",")
    assert in_slices(text) == at_once(text) == at_once(spelled(text))


def test_strings_that_are_read_in_slices_keep_their_words() -> None:
    strings = ",".join(['"Inf"', '"-NaN\\""', '"\\\\"', '",Inf,"'] * 10_000)
    text = body(f"[{strings}]", "BYTES")
    text = text.replace(b'"id":"5"', b'"id":"Inf","parameters":{"Inf":Inf,"b":"-NaN"}')
    assert in_slices(text) == at_once(text)
    assert at_once(text).id == "Inf"
    assert at_once(text).parameters == {"Inf": math.inf, "b": "-NaN"}


@pytest.mark.parametrize("more", [",?", ',"parameters":{"a":Inf,"b":Inf ?}'])
@pytest.mark.parametrize("last", ["Inf", "?"])
def test_faults_of_large_texts_are_told_where_they_were(more: str, last: str) -> None:
    text = body("[" + "Inf," * 39_999 + last + "]", more=more)
    assert said(in_slices, text) == said(at_once, text)
    assert said(in_slices, text).endswith(f" at {text.index(b'?')}")


def test_no_slice_is_parsed_more_than_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    text = body("[" + "1," * 39_000 + "Inf," * 999 + "Inf]")
    sizes = noted_sizes(monkeypatch)
    in_slices(text)
    assert sum(sizes) < 2.5 * len(text)
    assert max(sizes) < 3 * SLICE_BYTES
    sizes.clear()
    in_slices(text.replace(b"Inf", b"1"))
    assert sum(sizes) < 1.1 * len(text)


def test_numbers_alone_take_these_words() -> None:
    for datatype, words in (("INT32", "[Inf]"), ("BOOL", "[-NaN]"), ("BYTES", "[Inf]")):
        assert f"input 'I' is {datatype}" in said(at_once, body(words, datatype, 1))

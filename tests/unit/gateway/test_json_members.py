"""An object that is walked through comes to the same as one that is parsed, faults included."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from naiad.gateway import json_words
from naiad.gateway.calls import TENSORS_MAX
from naiad.gateway.http_parameters import parsed_object
from naiad.gateway.json_members import (
    SHORT_CHARS,
    STEP_CHARS,
    STEP_VALUES,
    STRING_CHARS_MAX,
    VALUE_CHARS_MAX,
    VALUES_MAX,
    members,
)
from naiad.protocol.errors import RequestError
from support.steps import ended

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=5)


def walked(text: str, wanted: frozenset[str] | None = None) -> tuple[Any, int]:
    """What is found, and after how many steps."""
    names = wanted
    if names is None:
        parsed = json.loads(text)
        names = frozenset(parsed)
    return ended(members(text, names))


@given(OBJECTS, st.booleans(), st.sampled_from([None, 0, 2]))
def test_any_object_is_read_as_by_the_parser(
    given: dict[str, Any], is_ascii: bool, indent: int | None
) -> None:
    text = json.dumps(given, ensure_ascii=is_ascii, indent=indent)
    assert walked(f" {text}\n")[0] == json.loads(text)


@given(OBJECTS, st.integers(0), st.text('{}[],:"1 \\atrue', max_size=2), st.integers(0, 2))
@example({"a": 1}, 0, "", 1)
@example({"a": [1]}, 6, ",", 0)
@example({"a": 1}, 1_000_000, "}", 0)
def test_spoiled_text_is_refused_where_the_parser_refuses_it(
    given: dict[str, Any], position: int, more: str, less: int
) -> None:
    text = json.dumps(given)
    position %= len(text) + 1
    text = text[:position] + more + text[position + less :]
    try:
        expected = parsed_object(text.encode())
    except RequestError as fault:
        with pytest.raises((ValueError, RequestError)) as found:
            walked(text, frozenset("abcdefgh"))
        # Newer parsers point at the comma before a closing bracket.
        at = int(fault.message.rpartition(" at ")[2]) if " at " in fault.message else -1
        assert getattr(found.value, "pos", None) in (None, at, at + 1)
        return
    assert walked(text)[0] == expected


def test_what_nobody_wants_is_looked_at_and_let_go() -> None:
    text = '{"a":[1,2],"b":{"c":3},"d":"e","x":[{}],"y":{},"z":1}'
    assert walked(text, frozenset("ady"))[0] == {"a": [1, 2], "d": "e", "y": {}}
    with pytest.raises(ValueError, match="Expecting value"):
        walked('{"x":[1,]}', frozenset())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"a":[[' + "1," * VALUE_CHARS_MAX + "1]]}", f"at most {VALUE_CHARS_MAX} characters"),
        ('{"a":{"b":{"c":"' + "x" * VALUE_CHARS_MAX + '"}}}', f"{VALUE_CHARS_MAX} characters"),
        ('{"a":[0.' + "1" * VALUE_CHARS_MAX + "]}", f"{VALUE_CHARS_MAX} characters"),
        ('{"a":["' + "x" * STRING_CHARS_MAX + '"]}', f"at most {STRING_CHARS_MAX} characters"),
        ('{"a":"' + "x" * STRING_CHARS_MAX + '"}', f"at most {STRING_CHARS_MAX} characters"),
        ('{"' + "x" * VALUE_CHARS_MAX + '":1}', f"at most {VALUE_CHARS_MAX} characters"),
        ('{"a":[' + "1," * TENSORS_MAX + "1]}", f"at most {TENSORS_MAX} values, got 1025"),
        ('{"x":[' + "1," * VALUES_MAX + "1]}", f"at most {VALUES_MAX} values, got more"),
        ("{" + '"x":1,' * VALUES_MAX + '"x":1}', f"at most {VALUES_MAX} values, got more"),
        ('{"a":["\\ud800"]}', "not Unicode"),
        ('{"\\uDC00":1}', "not Unicode"),
    ],
    ids=lambda given: given[:12],
)
def test_there_is_a_limit_of_each_value_and_of_their_number(text: str, what: str) -> None:
    with pytest.raises((ValueError, RequestError)) as found:
        walked(text + " " * 100_000, frozenset("a"))
    assert what in str(found.value)


def test_what_is_just_within_the_limits_is_read() -> None:
    long = "é" * (STRING_CHARS_MAX // 6 - 1)
    given = {
        "parameters": {"p": long, "q": "x" * (STRING_CHARS_MAX - 3)},
        "inputs": [{"n": [1] * (VALUE_CHARS_MAX // 4)}, *[{}] * (TENSORS_MAX - 1)],
        "id": 5,
    }
    text = json.dumps(given)
    assert walked(text)[0] == given


@pytest.mark.parametrize(
    "text",
    [
        '{"a":[' + "1," * (VALUES_MAX - 2) + "1]}",
        "{" + ",".join(f'"{number}":[]' for number in range(VALUES_MAX - 1)) + "}",
        '{"a":[' + ",".join(['{"b":' + "[1]" * 1 + "}"] * (VALUES_MAX - 1)) + "]}",
        '{"a":[' + ",".join(['"' + "x" * 10_000 + '"'] * 30) + "]}",
        '{"a":{' + ",".join(f'"{number}":"{"x" * 10_000}"' for number in range(30)) + "}}",
    ],
    ids=lambda text: text[:12],
)
def test_no_step_reads_much(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = [[]]

    class Decoder(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            found, end = super().raw_decode(s, idx)
            read[-1].append(end)
            return found, end

    monkeypatch.setattr(json_words, "_DECODER", Decoder())
    for _ in members(text, frozenset()):
        read.append([])
    assert sum(map(len, read)) > STEP_VALUES or len(read) > 10
    assert max(map(len, read)) <= 2 * STEP_VALUES + 1  # keys as well
    assert max(map(sum, read)) <= STEP_CHARS + STRING_CHARS_MAX


@pytest.mark.parametrize("value", ["5", '"s"', "[1,2]"])
def test_no_more_is_copied_than_short_values_need(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One character beyond U+FFFF makes every one of a text four bytes long."""
    copied = [0]
    decode = json.JSONDecoder().raw_decode

    class Decoder:
        def raw_decode(self, part: str) -> Any:
            copied[-1] += len(part)
            return decode(part)

    monkeypatch.setattr(json_words, "_DECODER", Decoder())
    text = '{"x":{' + f'"k":{value},' * 4000 + '"😀":' + "1}}"
    text += " " * 200_000
    steps = members(text, frozenset())
    for _ in steps:
        copied.append(0)
    assert len(copied) > 4000 // STEP_VALUES
    assert max(copied) <= 2 * (STEP_VALUES + 1) * SHORT_CHARS


def test_longer_values_than_are_looked_at_first_are_read() -> None:
    sizes = [end + more for end in (64, 512, 4096) for more in range(-20, 3)]
    for size in sizes:
        for value in ("x" * size, [1] * (size // 3), int("1" * size), {"k" * size: "\\" * size}):
            given = {"b": [value], "c": {"k" * size: value}}
            assert walked(json.dumps(given))[0] == given


def test_what_is_no_object_is_named() -> None:
    array, string = "[" + "1," * 99_999 + "1]", '"' + "x" * 99_999 + '"'
    for text, what in ((array, "an array"), (string, "a string")):
        with pytest.raises(RequestError, match=f"expected an object, got {what}"):
            walked(text)

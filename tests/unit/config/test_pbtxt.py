"""What parses (all that protobuf's text format accepts), and what does not, with its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.config.pbtxt import CONFIG_BYTES_MAX, parse

SAME = {"max_batch_size": 8, "input": ["a", "b"], "dims": [3, -1]}
ACCEPTED = {
    "lists": 'max_batch_size: 8 input [ {name: "a" dims: [3, -1]}, {name: "b"} ]',
    "repeated": 'max_batch_size: 8 input {name: "a" dims: 3 dims: -1} input {name: "b"}',
    "colon before brackets": 'max_batch_size: 8 input: [ {name: "a", dims: [3,-1]}, {name: "b"} ]',
    "colon before braces": 'max_batch_size: 8 input: {name: "a" dims: [3,-1]} input: {name:"b"}',
    "angle brackets": 'max_batch_size: 8 input <name: "a" dims: [3,-1]> input <name: "b">',
    "single quotes": "max_batch_size: 8 input [ {name: 'a' dims: [3, -1]}, {name: 'b'} ]",
    "concatenation": "max_batch_size: 8 input {name: '' \"a\" dims: [3,-1]} input {name: 'b' ''}",
    "separators": 'max_batch_size: 8, input {name: "a"; dims: [3,-1],} input {name: "b"}',
    "comments": '# one\nmax_batch_size: 8 # two\ninput {name: "a" dims: [3,-1]} input {name: "b"}#',
    "hex": 'max_batch_size: 0x8 input {name: "a" dims: [3,-1]} input {name: "b"}',
    "space before colon": 'max_batch_size : 8 input {name : "a" dims :[3,-1]} input {name :"b"}',
    "crlf": 'max_batch_size: 8\r\ninput {name: "a"\r\ndims: [3,-1]}\r\ninput {name: "b"}\r\n',
    "byte order mark": '\ufeffmax_batch_size: 8 input {name: "a" dims: [3,-1]} input {name: "b"}',
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_b55_accepts_what_protobuf_text_accepts(text: str) -> None:
    parsed = parse(text.encode())

    assert parsed.faults == []
    assert parsed.json is not None
    assert parsed.json["max_batch_size"] == SAME["max_batch_size"]
    assert [item["name"] for item in parsed.json["input"]] == SAME["input"]
    assert parsed.json["input"][0]["dims"] == SAME["dims"]


@pytest.mark.parametrize("word", ["true", "True", "t", "1"])
def test_every_spelling_of_true(word: str) -> None:
    parsed = parse(f"model_transaction_policy {{ decoupled: {word} }}".encode())

    assert parsed.json is not None
    assert parsed.json["model_transaction_policy"] == {"decoupled": True}


def test_enums_by_name_and_by_number() -> None:
    parsed = parse(b"input { data_type: TYPE_STRING } input { data_type: 13 }")

    assert parsed.json is not None
    assert [item["data_type"] for item in parsed.json["input"]] == ["TYPE_STRING"] * 2


def test_an_enum_number_that_stands_for_nothing_is_a_fault_with_its_path() -> None:
    parsed = parse(b"input { name: 'a' } input { data_type: 99 }")

    assert [fault.where for fault in parsed.faults] == ["input[1].data_type"]
    assert "write one of TYPE_BOOL" in parsed.faults[0].remedy


def test_an_empty_file_is_an_empty_config_with_defaults_printed() -> None:
    parsed = parse(b"")

    assert parsed.json is not None
    assert parsed.json["max_batch_size"] == 0
    assert parsed.json["input"] == []
    assert "dynamic_batching" not in parsed.json


@pytest.mark.parametrize(
    ("data", "where", "message"),
    [
        (b"a" * (CONFIG_BYTES_MAX + 1), "config.pbtxt", f"more than {CONFIG_BYTES_MAX} bytes"),
        (b'name: "x"\n\xff', "config.pbtxt:2:1", "0xff is not UTF-8"),
        ('name: "x"'.encode("utf-16"), "config.pbtxt:1:1", "UTF-16"),
        (b"input {" * 70 + b"}" * 70, "config.pbtxt", "nested 70 deep"),
        (b'name: "C:\\models"', "config.pbtxt:1:10", "unknown escape \\m"),
        (b'name: "\\xff"', "config.pbtxt:1:13", "utf-8"),
    ],
    ids=["too large", "not utf-8", "utf-16", "too deep", "unknown escape", "no text"],
)
def test_files_that_are_refused_before_or_beside_the_grammar(
    data: bytes, where: str, message: str
) -> None:
    parsed = parse(data)

    assert parsed.json is None
    assert [fault.where for fault in parsed.faults] == [where]
    assert message in parsed.faults[0].message


def test_the_file_name_given_stands_in_the_place() -> None:
    (fault,) = parse(b"max_batch_size: x", file="m/config.pbtxt").faults

    assert fault.where == "m/config.pbtxt:1:17"


WORDS = "input output name dims 1 -1 8.0 { } [ ] < > : , ; # // ${x} {{ y }} X_Y “"
STRINGS = ('"a"', "'b", '"\\y"')


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from((*WORDS.split(), *STRINGS)), max_size=30),
    st.sampled_from([" ", "\n", "\0"]),
)
def test_no_text_makes_the_parser_raise(words: list[str], separator: str) -> None:
    parsed = parse(separator.join(words).encode())

    assert (parsed.json is None) == any(":" in fault.where for fault in parsed.faults)

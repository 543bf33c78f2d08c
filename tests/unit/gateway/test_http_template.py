"""Templates give what parsing gives; what is not the same text but for its id makes none."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.client.fields import packed
from naiad.client.requests import InferInput, Prepared, checked
from naiad.gateway.calls import ANY_VERSION, AnswerOutput, InferAnswer, InferCall
from naiad.gateway.http_answer import answer_body
from naiad.gateway.http_request import infer_call
from naiad.gateway.http_template import Template, split_label, template_of
from naiad.gateway.json_tensors import from_json, to_json
from naiad.gateway.users import User

BINARY = {"name": "A", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
WANTED = [{"name": "O", "parameters": {"binary_data": True}}]
DATA = struct.pack("<4f", 1, 2, 3, 4)


def parsed(text: bytes, data: bytes) -> InferCall:
    return infer_call("m", ANY_VERSION, text + data, len(text), from_json, 1 << 20)


def parts_of(call: InferCall) -> Prepared:
    """As the data plane makes them, without shared memory."""
    inputs = [packed(InferInput(*one)) for one in call.inputs]  # type: ignore[arg-type]
    return checked((call.model, call.version, call.id), tuple(inputs))


def template(request: dict[str, Any], data: bytes = DATA[:8]) -> Template | None:
    call = parsed(json.dumps(request).encode(), data)
    return template_of(call, parts_of(call))


def test_a_filled_template_is_what_parsing_gives() -> None:
    request = {"inputs": [BINARY, {**BINARY, "name": "B"}], "outputs": WANTED}
    made = template(request, DATA)
    assert made is not None
    assert made.data_bytes == 16
    other = struct.pack("<4f", 5, 6, 7, 8)
    text = json.dumps(request).encode()
    want = parts_of(parsed(text, other)._replace(id="x7"))
    found = made.filled(text + other, len(text), "x7")
    assert (found.head, found.inputs, found.tail) == (want.head, want.inputs, want.tail)
    assert (found.inline_bytes, found.header_bytes) == (want.inline_bytes, want.header_bytes)


def test_whom_it_is_for_is_filled_in_as_well() -> None:
    request = {"inputs": [BINARY], "outputs": WANTED, "parameters": {"binary_data_output": True}}
    made = template(request)
    assert made is not None
    user = User("ada", "red")
    text = json.dumps(request).encode()
    plain = made.filled(text + DATA[:8], len(text), "x7")
    found = made.filled(text + DATA[:8], len(text), "x7", user)
    assert found.tail == (*plain.tail[:4], "ada", "red", *plain.tail[6:])
    assert found.header_bytes > plain.header_bytes


def test_its_answers_are_what_writing_gives() -> None:
    made = template({"inputs": [BINARY], "parameters": {"binary_data_output": True}})
    assert made is not None
    call = InferCall("m", ANY_VERSION, "", (), is_binary_by_default=True)
    for version, label, data in (
        (1, "", b"abcd"),
        (1, "x7", b"abcd"),
        (2, "", b"ef"),
        (2, "", b"gh"),
    ):
        row = AnswerOutput("Ö", "UINT8", (len(data),), memoryview(data))
        want = answer_body(call, InferAnswer("m", version, label, (row,)), to_json)
        assert made.answered(version, [row], label) == want.parts[0]


@pytest.mark.parametrize(
    "change",
    [
        {"id": "a"},
        {"parameters": {"priority": 1}},
        {"parameters": {"timeout": 1}},
        {"parameters": {"x": 1}},
        {"parameters": {"sequence_id": 1}},
        {"outputs": [{"name": "O"}]},
        {"outputs": [{"name": "O", "parameters": {"classification": 1}}]},
        {"outputs": []},
    ],
)
def test_what_makes_no_template(change: dict[str, Any]) -> None:
    assert template({"inputs": [BINARY], "outputs": WANTED}) is not None
    assert template({"inputs": [BINARY], "outputs": WANTED, **change}) is None


def test_json_and_large_tensors_make_no_template() -> None:
    array = {"name": "A", "shape": [1], "datatype": "INT8", "data": [1]}
    assert template({"inputs": [array], "outputs": WANTED}, b"") is None
    large = {**BINARY, "parameters": {"binary_data_size": 20_000}}
    assert template({"inputs": [large], "outputs": WANTED}, bytes(20_000)) is None


@pytest.mark.parametrize(
    ("text", "split"),
    [
        (b'{"id":"a7","inputs":[]}', ("a7", b'{"inputs":[]}')),
        (b'{"inputs":[]}', ("", b'{"inputs":[]}')),
        (b'{"id":"","inputs":[]}', ("", b'{"id":"","inputs":[]}')),
        (b'{"id":"a"}', ("", b'{"id":"a"}')),
        (b'{"id":"a\\",","inputs":[]}', ("", b'{"id":"a\\",","inputs":[]}')),
        (b'{"id":"\xc3\xbc","inputs":[]}', ("", b'{"id":"\xc3\xbc","inputs":[]}')),
    ],
)
def test_the_id_is_split_off_where_it_is_plain(text: bytes, split: tuple[str, bytes]) -> None:
    assert split_label(text) == split


@given(st.text(max_size=10), st.binary(max_size=30))
def test_splitting_never_changes_the_meaning(label: str, rest: bytes) -> None:
    text = json.dumps({"id": label, "inputs": []}, separators=(",", ":")).encode()
    found, without = split_label(text)
    if found:
        assert {"id": found, **json.loads(without)} == json.loads(text)
    assert split_label(rest)[1] == rest or rest.startswith(b'{"id":"')

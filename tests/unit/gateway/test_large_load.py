"""The JSON of a load, read in steps, is what it is at once."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.gateway.calls import TENSORS_MAX
from naiad.gateway.json_members import VALUES_MAX
from naiad.gateway.json_slices import REST_BYTES_MAX, SLICE_BYTES
from naiad.gateway.json_strings import PIECE_BYTES
from naiad.gateway.large_load import STRING_BYTES_MIN, load_parameters
from naiad.protocol.errors import RequestError
from support.steps import ended

CONFIG_MAX = 1 << 20


def read(body: bytes) -> tuple[dict[str, Any], int]:
    """The parameters, and in how many steps."""
    return ended(load_parameters(body, CONFIG_MAX))


def load(**parameters: Any) -> bytes:
    return json.dumps(
        {"parameters": {key.replace("_", ":"): parameters[key] for key in parameters}}
    ).encode()


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(["file:a", "file:1/b", "file:é"]),
        st.tuples(st.binary(min_size=1, max_size=9), st.sampled_from([0, 1, 500, 3000, 70_000])),
        max_size=3,
    ),
    st.sampled_from(["", "{}", '{"a": "\\"\\\\"}' * 400, 'é",' * 30_000, "😀" * 40_000]),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_files_and_the_configuration_are_what_they_were(
    files: dict[str, tuple[bytes, int]], config: str, indent: int | None, escapes_slashes: bool
) -> None:
    expected: dict[str, Any] = {name: unit * times for name, (unit, times) in files.items()}
    texts = {name: base64.b64encode(data).decode() for name, data in expected.items()}
    text = json.dumps({"parameters": {"config": config, **texts}}, indent=indent)
    if escapes_slashes:
        text = text.replace("/", "\\/")
    found, _ = read(text.encode())
    assert found == {"config": config, **expected}


def test_much_is_read_in_many_steps() -> None:
    data = bytes(range(256)) * 40_000
    body = load(file_x=base64.b64encode(data).decode(), config="{}")
    found, steps = read(body)
    assert found == {"file:x": data, "config": "{}"}
    assert steps > len(body) / SLICE_BYTES + len(body) / PIECE_BYTES


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Q" * 10_001, "no base64"),
        ("QUJD" * 30_000 + "=", "no base64"),
        ("QUJD" * 10_000 + "QQ==" + "QUJD" * 30_000, "no base64: .*padding"),
        ("QQ==" * 30_000, "no base64"),
        ("é" * 10_000, "no base64"),
        ("Q UJ" * 10_000, "no base64"),
        ("*", "no base64"),
        ("QUJD\n" * 9 + "QQ==\n", "Only base64 data"),
        ("QQ==QUJD", "no base64: .*padding"),
        (7, "as string"),
    ],
)
def test_what_is_no_base64_is_refused(text: Any, what: str) -> None:
    with pytest.raises(RequestError, match=what):
        read(load(file_x=text))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 3 * PIECE_BYTES // 4, 98_303, 98_304, 98_305])
def test_padding_wherever_a_piece_ends(size: int) -> None:
    for data in (bytes(size), bytes(size + 1), bytes(size + 2)):
        assert read(load(file_x=base64.b64encode(data).decode()))[0] == {"file:x": data}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"[]", "expected an object, got an array"),
        (b'{"parameters":[]}', "non-object"),
        (b'{"parameters":{"config":"' + b"x" * 10_000, "Unterminated"),
        (b'{"parameters":{"config":"' + b"x" * 2 * REST_BYTES_MAX, f"{REST_BYTES_MAX} bytes"),
        (b'{"parameters":{"config":"' + b"x" * 100_000 + b'"} x', "',' delimiter at 100028"),
        (
            b'{"parameters":{"config":"' + b"x" * 100_000 + b'\n"}}',
            "control character at at 100025",
        ),
        (b'{"parameters":{"config":"' + b"x" * (CONFIG_MAX + 1) + b'"}}', f"at most {CONFIG_MAX}"),
        (b'{"parameters":{' + b'"a":1,' * TENSORS_MAX + b'"a":1}}', f"at most {TENSORS_MAX}"),
        (b'{"ready":[' + b"1," * VALUES_MAX + b"1]}", f"at most {VALUES_MAX} values"),
        (b'{"a":' + b"1" * REST_BYTES_MAX + b"1}", f"strings from {STRING_BYTES_MIN} bytes on"),
    ],
    ids=lambda given: str(given[-30:]),
)
def test_what_is_no_load_is_refused_by_name(body: bytes, what: str) -> None:
    with pytest.raises(RequestError) as found:
        read(body)
    assert what in found.value.message


def test_without_parameters_there_are_none() -> None:
    assert read(b"{}")[0] == {}


@pytest.mark.parametrize("spaces", ["", " ", " \n" * 200])
def test_the_names_of_parameters_are_what_they_were(spaces: str) -> None:
    key, text = "file:" + "x" * 5000, "x" * 5000
    found, _ = read(f'{{"parameters":{{"{key}"{spaces}:"QUJD","{text}"{spaces}:1}}}}'.encode())
    assert found == {key: b"ABC", text: 1}


@pytest.mark.parametrize("inside", ["\\x", "\n", "\\ud83"])
@pytest.mark.parametrize("form", ['{"a":"%s"}', '{"parameters":{"a":["%s"]}}', '{"a":{"b":"%s"}}'])
def test_a_string_that_nobody_wants_has_to_be_one(form: str, inside: str) -> None:
    long = "x" * 5000
    read((form % long).encode())
    with pytest.raises(RequestError, match="failed to parse the request JSON buffer"):
        read((form % (long + inside + long)).encode())


def test_long_runs_of_spaces_mean_nothing() -> None:
    gap = " " * 300_000
    text = f'{gap}{{{gap}"parameters"{gap}:{{"config":"{gap}"{gap},"file:x":"QUJD"}}}}{gap}'
    assert read(text.encode())[0] == {"config": gap, "file:x": b"ABC"}

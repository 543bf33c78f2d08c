"""JSON that is read in slices comes to the same as at once."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from naiad.gateway.json_slices import ARRAYS_MAX, REST_BYTES_MAX, SLICE_BYTES
from support.large_json import FLOATS, ONES, STRINGS, at_once, body, cut, in_slices


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


def test_many_inputs_of_any_length_are_read() -> None:
    tensor = '{"name":"I","datatype":"INT32","shape":[%d],"data":[%s]}'
    inputs = [tensor % (count, ",".join(["1234567"] * count)) for count in range(3, 4000, 5)]
    text = f'{{"inputs":[{",".join(inputs)}]}}'.encode()
    assert len(text) > 10 * 1024 * 1024
    assert len(cut(text).rest) < REST_BYTES_MAX
    assert in_slices(text) == at_once(text)


@pytest.mark.parametrize("count", [ARRAYS_MAX - 1, ARRAYS_MAX])
def test_as_many_arrays_are_read_as_a_call_may_have_inputs(count: int) -> None:
    one = '{"name":"I","datatype":"INT32","shape":[1],"data":[1]}'
    text = f'{{"inputs":[{",".join([one] * count)}]}}'.encode()
    assert in_slices(text) == at_once(text)


def test_long_strings_beside_arrays_are_read_by_who_knows_them() -> None:
    for key, value in (("id", '"%s"'), ("meta", '"%s"'), ("parameters", '{"p":"%s"}')):
        more = f',"{key}":{value % ("x" * 100_000)}'
        text = body(f"[{ONES}]", "INT32", 40_000, more).replace(b'"id":"5",', b"")
        assert in_slices(text) == at_once(text)


@pytest.mark.parametrize(
    "key",
    [r"\u0064ata", r"d\u0061ta", r"da\u0074a", r"dat\u0061", r"\u0064\u0061\u0074\u0061"],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_key_may_be_written_with_escapes(key: str, at: int) -> None:
    def tensor(number: int) -> str:
        name = key if number == at else "data"
        return f'{{"{name}" : [{ONES}],"name":"I","datatype":"INT32","shape":[40000]}}'

    more = r'"parameters":{"mine":"\u0061\"data\":[1,2"}'
    text = f'{{"inputs":[{",".join(map(tensor, range(3)))}],{more}}}'.encode()
    assert len(cut(text).taken) == 3
    assert in_slices(text) == at_once(text)


@pytest.mark.parametrize("key", [r"d\\u0061ta", r"\u0044ata", r"dat\u0061x", r"\"d\u0061ta"])
def test_other_keys_are_others(key: str) -> None:
    text = f'{{"inputs":[],"x":{{"{key}":[{",".join(["1"] * 1000)}]}}}}'.encode()
    assert in_slices(text) == at_once(text)

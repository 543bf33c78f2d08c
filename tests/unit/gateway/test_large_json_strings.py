"""Long strings in large JSON, which are read in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from naiad.gateway.json_slices import WHOLE_BYTES_MAX
from naiad.protocol.errors import RequestError
from support.large_json import at_once, body, cut, in_slices, noted_sizes

LONG = 'é"\\,[]😀' * 40_000


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize(
    "string", ["\\\\" * 90_000, '\\"' * 90_000, '\\\\\\",],[' * 30_000, "[,]" * 70_000]
)
def test_long_strings_with_anything_in_them(string: str, before: int) -> None:
    """Wherever in an escape a slice's worth of text ends."""
    text = body(f'["{"x" * before}{string}", "b", "{string}"]', "BYTES", 3)
    assert len(cut(text).taken) == 1
    assert in_slices(text) == at_once(text)


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

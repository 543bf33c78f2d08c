"""Long runs of spaces in large JSON mean nothing, wherever they are."""

from __future__ import annotations

import json

import pytest

from support.large_json import ONES, at_once, body, in_slices, said

ROOM = " " * 140_000
NAMED = '"name":"I","datatype":"INT32","shape":[1]'
PLACES = ("data", "behind", "before")


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

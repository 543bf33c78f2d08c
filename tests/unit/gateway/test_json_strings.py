"""A string that is read in pieces is the same as one that is parsed."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from naiad.gateway import json_strings
from naiad.gateway.json_strings import LongString, pieces
from naiad.protocol.errors import RequestError

PIECE = 16
TEXTS = st.text(st.sampled_from('\\"/n\n\b\té€😀\ud83d\ude00\ud800\udc00xu'), max_size=120)


@pytest.fixture(autouse=True, scope="module")
def _short_pieces() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_strings, "PIECE_BYTES", PIECE)
        yield


def read(text: bytes, start: int, end: int) -> list[str]:
    return list(pieces(memoryview(text), start, end))


@given(TEXTS, st.booleans())
@example("\\" * 100, True)
@example("x" * 11 + "\ud83d\ude00" * 9, True)
@example("x" * 10 + "😀" * 9, True)
@example("x" * 15 + "\ud83dx", True)
@example("x" + "é€😀" * 20, False)
def test_any_string_is_read_as_by_the_parser(given: str, is_ascii: bool) -> None:
    text = json.dumps(given, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    try:
        expected = json.loads(text.decode())
    except UnicodeDecodeError:
        with pytest.raises(RequestError, match="failed to parse"):
            read(text, 1, len(text) - 1)
        return
    found = read(text, 1, len(text) - 1)
    parts = [one.encode("utf-8", "surrogatepass") for one in found]
    assert b"".join(parts) == expected.encode("utf-8", "surrogatepass")
    assert max(map(len, found), default=0) <= PIECE


@given(st.text(st.sampled_from('\\"n\nux1é'), max_size=80))
def test_spoiled_strings_are_refused_as_by_the_parser(given: str) -> None:
    text = f'"{given}"'.encode()
    try:
        expected = json.loads(text.decode())
    except ValueError:
        with pytest.raises(RequestError, match="failed to parse"):
            read(text, 1, len(text) - 1)
        return
    assert "".join(read(text, 1, len(text) - 1)) == expected


def test_faults_say_where() -> None:
    text = b'["' + b"x" * 100 + b"\n" + b'"]'
    with pytest.raises(RequestError, match=r"Invalid control character at at 102$"):
        read(text, 2, len(text) - 2)


def test_a_part_with_one_string() -> None:
    content = "\\\\\\u20ac" * 20
    text = f'[[7, [ "{content}" ] ]]'.encode()
    start, end = text.index(b" [") + 1, text.rindex(b"]]")
    found = LongString(memoryview(text), start, end)
    assert found.around == b'[ "" ] '
    assert "".join(found.pieces()) == "\\€" * 20
    assert [found.position(at) for at in (0, 2, 4, 5)] == [
        start,
        start + 2,
        start + 4 + len(content),
        start + 5 + len(content),
    ]


@pytest.mark.parametrize("part", [b"1" * 100, b" " * 100, b'[ "' + b"x" * 100, b'"' + b"1" * 99])
def test_a_part_that_is_no_string_is_refused(part: bytes) -> None:
    with pytest.raises(RequestError, match=f"{PIECE} bytes"):
        LongString(memoryview(part), 0, len(part))

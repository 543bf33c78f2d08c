"""What a setting's text may be, and what is said of one that it may not be."""

from __future__ import annotations

import pytest

from naiad.config.accepts import BYTES, LARGEST, SWITCH, TEXT, Accepts

WORDS = Accepts(("STATIC", "DYNAMIC"))
EITHER = Accepts(("auto",), least=-1, most=9)


@pytest.mark.parametrize(
    ("accepts", "good", "bad"),
    [
        (WORDS, ["STATIC"], ["static", "", "STATI"]),
        (Accepts(("yes", "no"), any_case=True), ["Yes", "no"], ["y", ""]),
        (SWITCH, ["0", "1", " 1 "], ["2", "-1", "true", "", "1.0", "١"]),
        (BYTES, ["0", str(LARGEST)], [str(LARGEST + 1), "-0x1", "9" * 5000, "much"]),
        (EITHER, ["auto", "-1", "9"], ["-2", "10", "--1", "-"]),
        (TEXT, ["", "anything"], []),
    ],
)
def test_what_is_taken(accepts: Accepts, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(text)] == []
    assert [text for text in bad if accepts(text)] == []
    assert [accepts.fault(text) for text in good] == [""] * len(good)


@pytest.mark.parametrize(
    ("accepts", "fault"),
    [
        (WORDS, 'expected STATIC, DYNAMIC, got "x"'),
        (SWITCH, 'expected a whole number from 0 to 1, got "x"'),
        (BYTES, 'expected a whole number from 0 on (bytes), got "x"'),
        (EITHER, 'expected auto or a whole number from -1 to 9, got "x"'),
    ],
)
def test_what_was_expected_is_said(accepts: Accepts, fault: str) -> None:
    assert accepts.fault("x") == fault


def test_the_word_that_was_meant() -> None:
    assert WORDS.hint("STATI") == 'did you mean "STATIC"?'
    assert WORDS.hint("nonsense") == SWITCH.hint("2") == ""


def test_a_text_that_tells_its_setting() -> None:
    assert WORDS.is_told_by("STATIC")
    assert not WORDS.is_told_by("other")
    assert not Accepts(("true", "false")).is_told_by("true")
    assert not Accepts(("0", "fast")).is_told_by("0")
    assert not TEXT.is_told_by("anything")
    libraries = Accepts(ending=".so")
    assert libraries.is_told_by("a.so; b.so;")
    assert not libraries.is_told_by("a.so;b")
    assert not libraries.is_told_by("")

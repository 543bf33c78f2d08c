"""Documents as text, a few values at a time: the same as at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.gateway import json_documents
from naiad.gateway.json_documents import document_text, runs, value_count
from support.steps import ended

SCALARS = st.none() | st.booleans() | st.integers() | st.text()
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
MOST = 8


def at_once(document: Any) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def counted(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + sum(map(counted, value)) if isinstance(value, list) else 1


@settings(max_examples=40)
@given(document=DOCUMENTS)
def test_any_document(document: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_documents, "VALUES_PER_STEP", MOST)
        assert ended(document_text(document))[0] == at_once(document)


@settings(max_examples=40)
@given(document=DOCUMENTS)
def test_no_step_writes_many_values(document: Any) -> None:
    written: list[Any] = []
    dumped = json_documents._dumped

    def noted(value: Any) -> bytes:
        written.append(value)
        return dumped(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_documents, "VALUES_PER_STEP", MOST)
        patch.setattr(json_documents, "_dumped", noted)
        ended(document_text(document))
    assert max(map(counted, written)) <= MOST


def test_a_name_that_is_no_text_is_written_out() -> None:
    assert ended(document_text({"\ud800": "\udfff"}))[0] == b'{"\\ud800":"\\udfff"}'


def test_what_is_short_is_one_step() -> None:
    assert ended(document_text({"a": [1, 2], "b": {}})) == (b'{"a":[1,2],"b":{}}', 1)


@settings(max_examples=40)
@given(document=DOCUMENTS, most=st.integers(1, 50))
def test_no_more_is_counted_than_is_asked_for(document: Any, most: int) -> None:
    exactly = counted(document)
    found = value_count(document, most)
    assert found == exactly if exactly < most else most <= found <= exactly


@settings(max_examples=40)
@given(items=st.lists(DOCUMENTS), most=st.integers(2, 20))
def test_runs_are_short_or_of_one(items: list[Any], most: int) -> None:
    found = list(runs(items, most))
    assert [one for some, _ in found for one in some] == items
    for some, is_long in found:
        assert is_long == (sum(map(counted, some)) >= most)
        assert len(some) == 1 or not is_long

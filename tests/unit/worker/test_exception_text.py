"""The text of a foreign exception, whatever its class does when it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.protocol.errors import Code, ModelError, RequestError
from naiad.worker.exception_text import (
    TEXT_BYTES_MAX,
    described,
    own_error,
    place_below,
    traceback_text,
)


def raises(self: object, *_: object) -> Any:
    raise SystemExit(3)


class NoText(Exception):
    __str__ = __repr__ = raises


class NotEvenAText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class NoClass(Exception):
    __class__ = property(raises)


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Nameless(type):
    __name__ = property(raises)
    __repr__ = raises


class OfNameless(Exception, metaclass=Nameless):
    pass


class Unfinished(ModelError):
    def __init__(self) -> None:
        pass


class Odd(RequestError):
    def wire(self) -> Any:
        return (b"code", None, "yes")


WITHOUT_TEXT: dict[str, type[BaseException]] = {
    "exits": NoText,
    "no text": NotEvenAText,
    "endless": Endless,
    "a class without a name": OfNameless,
    "our own, unfinished": Unfinished,
}
WITH_A_FAULT = {**WITHOUT_TEXT, "no class": NoClass, "our own, of odd fields": Odd}


@pytest.mark.parametrize("kind", WITHOUT_TEXT.values(), ids=WITHOUT_TEXT)
def test_an_exception_without_a_text_is_named_by_its_class(kind: type[BaseException]) -> None:
    assert type.__repr__(kind) in described(kind())


@pytest.mark.parametrize("kind", WITH_A_FAULT.values(), ids=WITH_A_FAULT)
def test_any_exception_has_a_text_and_a_traceback_that_can_be_written(
    kind: type[BaseException],
) -> None:
    fault = kind("text \udc80") if kind in (NoClass, Odd) else kind()
    fault.add_note("note \udc80")
    for text in (described(fault), traceback_text(fault)):
        assert text
        assert text.encode(errors="backslashreplace")


def test_a_text_is_bounded_and_can_be_encoded() -> None:
    assert described(ValueError("\ud800 here")) == "ValueError: \\ud800 here"
    assert len(described(ValueError("漢" * 10**6)).encode()) <= TEXT_BYTES_MAX


def test_our_own_errors_keep_code_and_message_and_lose_what_no_message_can_carry() -> None:
    fault = RequestError("no", code=Code.NOT_FOUND)
    own = own_error(fault)
    assert own is not None
    assert (own.wire(), described(fault)) == (fault.wire(), "no")
    assert own_error(ValueError("no")) is None
    for odd in (Odd("x"), Unfinished()):
        found = own_error(odd)
        assert found is not None
        assert all(type(one) in (str, bool) for one in found.wire())


def test_the_innermost_line_of_the_models_own_files_is_named() -> None:
    space: dict[str, Any] = {}
    source = "def run(do):\n    return do()\n"
    exec(compile(source, "/models/m/1/model.py", "exec"), space)
    with pytest.raises(ZeroDivisionError) as caught:
        space["run"](lambda: 1 / 0)
    assert place_below("/models/m", caught.value) == "1/model.py:2"
    assert place_below("/models/other", caught.value) == ""

"""Strings that a user gave: whether the server could read them, and what to say if not. Pure."""

from __future__ import annotations

from naiad.protocol.checks import NAME_BYTES_MAX
from naiad.protocol.errors import RequestError


def fits_text(given: object, chars_max: int = NAME_BYTES_MAX) -> bool:
    """Whether the server could read it: a string, not too long, of characters that UTF-8 has."""
    return (
        type(given) is str
        and len(given) <= chars_max
        and (given.isascii() or len(given.encode("utf-8", "ignore")) == utf8_bytes(given))
    )


def unfit_text(what: str, given: object) -> RequestError:
    """The error for what does not fit (see `fits_text`)."""
    if isinstance(given, str) and len(given) > NAME_BYTES_MAX:
        came = f"one of {len(given)}: {given[:40]!r}..."
    else:
        came = f"{given!r:.80}"
    return RequestError(
        f"expected {what} as a string of at most {NAME_BYTES_MAX} characters that UTF-8 has,"
        f" got {came}"
    )


def utf8_bytes(text: str) -> int:
    """With three bytes for each lone surrogate, which UTF-8 itself has not."""
    return len(text.encode("utf-8", "surrogatepass"))

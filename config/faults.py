"""One thing wrong with what the operator wrote, as a value: where, what, and the way out.

Faults are collected and shown all at once, so nothing here is an exception. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

RELEASE: Final = "not in this release"
"""What is refused by name: tools and people look for these words."""
SUGGESTION_CUTOFF: Final = 0.6
WORD_CHARS_MAX: Final = 100
"""Comparing words takes time that grows with the square of their length."""
NAMES_SHOWN_MAX: Final = 20
"""A list of names in a message is cut here: a repository may hold thousands of models."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`where` is a field's path ("input[0].dims"), a place ("config.pbtxt:3:17") or empty."""

    where: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.message}" + (f"; {self.remedy}" if self.remedy else "")

    def to_json(self) -> dict[str, str]:
        return {"where": self.where, "message": self.message, "remedy": self.remedy}


def without_roots(text: str, roots: Iterable[str]) -> str:
    """A text as clients may see it: where the server keeps its models is not theirs to know.

    Files of a model begin with the model's name, and a repository is called by its last name.
    """
    for root in sorted((path.rstrip("/") for path in roots), key=len, reverse=True):
        parent, _, name = root.rpartition("/")
        if name and (parent or root.startswith("/")):
            text = text.replace(f"{root}/", "").replace(root, name)
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'did you mean "x"?' for the closest known name, or an empty string."""
    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(
        word[:WORD_CHARS_MAX].casefold(), by_folded, n=1, cutoff=SUGGESTION_CUTOFF
    )
    return f'did you mean "{by_folded[close[0]]}"?' if close else ""


def listed(names: Sequence[str], *, empty: str = "none") -> str:
    """Names separated by commas, cut after NAMES_SHOWN_MAX with the number left out."""
    if not names:
        return empty
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    rest = len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {rest} more" if rest > 0 else shown

"""What the text of a setting may be: words, a whole number, or anything. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from naiad.config.faults import did_you_mean, listed

LARGEST: Final = 2**64 - 1
"""Of a whole number, where nothing says less: sizes of memory are given as the largest size_t."""
_TELL_NOTHING: Final = frozenset({"true", "false", "yes", "no"})
"""Words that could be the value of any setting."""


@dataclass(frozen=True, slots=True)
class Accepts:
    """One of `words` (with `any_case` however it is written), or a whole number from `least` to
    `most`; any text where neither is given. `ending` is that of all texts, where they have one,
    `unit` that of the number.
    """

    words: tuple[str, ...] = ()
    least: int | None = None
    most: int = LARGEST
    any_case: bool = False
    ending: str = ""
    unit: str = ""

    def __call__(self, text: str) -> bool:
        if not self.words and self.least is None:
            return True
        return self._is_word(text) or self._is_number(text)

    @property
    def expected(self) -> str:
        """What to write, in words."""
        parts = [listed(self.words)] if self.words else []
        if self.least is not None:
            upper = f" to {self.most}" if self.most < LARGEST else " on"
            of_unit = f" ({self.unit})" if self.unit else ""
            parts.append(f"a whole number from {self.least}{upper}{of_unit}")
        return " or ".join(parts) or "text"

    def fault(self, text: str) -> str:
        """'expected ..., got "..."', or nothing."""
        return "" if self(text) else f'expected {self.expected}, got "{text}"'

    def hint(self, text: str) -> str:
        """The word that was probably meant, or nothing."""
        return did_you_mean(text, self.words)

    def is_told_by(self, text: str) -> bool:
        """Whether the text can hardly be the value of another setting."""
        if self.ending:
            parts = [part.strip() for part in text.split(";") if part.strip()]
            return bool(parts) and all(part.endswith(self.ending) for part in parts)
        is_common = text.casefold() in _TELL_NOTHING or text.isdecimal()
        return self._is_word(text) and not is_common

    def _is_word(self, text: str) -> bool:
        if self.any_case:
            return text.casefold() in {word.casefold() for word in self.words}
        return text in self.words

    def _is_number(self, text: str) -> bool:
        bare = text.strip()
        digits = bare.removeprefix("-")
        if self.least is None or not (digits.isascii() and digits.isdecimal()):
            return False
        return len(digits) <= len(str(LARGEST)) and self.least <= int(bare) <= self.most


TEXT: Final = Accepts()
SWITCH: Final = Accepts(least=0, most=1)
WHOLE: Final = Accepts(least=0)
BYTES: Final = Accepts(least=0, unit="bytes")

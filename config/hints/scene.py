"""The place where protobuf gave up, and what a rule says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from naiad.config.hints.lexer import Source, Token

FALLBACK_REMEDY: Final = "docs/model_configuration.md shows what a config.pbtxt looks like"


class Finding(NamedTuple):
    """Where the mistake is (not always where protobuf gave up), what it is, what to do."""

    line: int
    column: int
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Scene:
    """The token where protobuf gave up, what it said, and ModelConfig's descriptor."""

    source: Source
    index: int
    reason: str
    schema: Any

    @property
    def token(self) -> Token:
        return self.source.at(self.index)

    @property
    def before(self) -> Token:
        return self.source.at(self.index - 1)

    @property
    def field(self) -> str:
        """The field the token is a value of, or empty."""
        name = self.source.field_before(self.index)
        return name.text if name else ""

    def finding(self, message: str, remedy: str, token: Token | None = None) -> Finding:
        """A finding at a token, by default the one where protobuf gave up."""
        place = token or self.token
        return Finding(place.line, place.column, message, remedy)

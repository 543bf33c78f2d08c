"""Tokens of protobuf text format with their places, for explaining why a text does not parse.

It never fails and decides nothing: protobuf's own parser says what is wrong and where, this gives
the words around that place. Lines and columns count from 1, as protobuf's. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

WORD: Final = "word"
NUMBER: Final = "number"
STRING: Final = "string"
OPEN_STRING: Final = "open_string"
MARK: Final = "mark"

_TOKEN: Final = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>"(?:[^"\n\\]|\\.)*"|'(?:[^'\n\\]|\\.)*')
      | (?P<open_string>["'][^\n]*)
      | (?P<word>[^\W\d]\w*)
      | (?P<number>[0-9+-][\w.+-]*)
      | (?P<mark>\S)""",
    re.VERBOSE,
)
CLOSING: Final = {"{": "}", "[": "]", "<": ">"}


class Token(NamedTuple):
    """`kind` is the name of its group in the pattern; line and column count from 1."""

    kind: str
    text: str
    line: int
    column: int

    @property
    def place(self) -> str:
        return f"{self.line}:{self.column}"


class Block(NamedTuple):
    """An opening bracket that is still open: its token, the field before it, the block's number."""

    opening: Token
    field: str
    number: int


@dataclass(frozen=True)
class Source:
    """A text, its tokens without comments, and its comments."""

    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def _all(self) -> list[Token]:
        tokens = []
        for number, line in enumerate(self.lines, start=1):
            for match in _TOKEN.finditer(line):
                kind = match.lastgroup or MARK
                tokens.append(Token(kind, match.group(), number, match.start() + 1))
        return tokens

    @cached_property
    def tokens(self) -> list[Token]:
        return [token for token in self._all if token.kind != "comment"]

    @cached_property
    def comments(self) -> list[Token]:
        return [token for token in self._all if token.kind == "comment"]

    def index_at(self, line: int, column: int) -> int:
        """The first token that ends after this place; len(tokens) at the end of the text."""
        ends = [(token.line, token.column + len(token.text)) for token in self.tokens]
        return bisect_left(ends, (line, column + 1))

    def at(self, index: int) -> Token:
        """The token at an index; an empty mark at the end of the text when there is none."""
        if 0 <= index < len(self.tokens):
            return self.tokens[index]
        return Token(MARK, "", len(self.lines), len(self.lines[-1]) + 1)

    def field_before(self, index: int) -> Token | None:
        """The name of the field that the value at an index belongs to, also from within a list."""
        depth = 0
        for position in range(index - 1, -1, -1):
            text = self.tokens[position].text
            if text in ("]", "}"):
                depth += 1
            elif text in ("[", "{") and depth:
                depth -= 1
            elif depth == 0 and (text == "[" or text == ":"):
                name = self.at(position - 1 if self.at(position - 1).text != ":" else position - 2)
                return name if name.kind == WORD else None
            elif depth == 0 and text == "{":
                return None
        return None

    def open_blocks(self, index: int) -> list[Block]:
        """The brackets that are open before the token at an index, outermost first."""
        stack: list[Block] = []
        for position, token in enumerate(self.tokens[:index]):
            if token.text in CLOSING:
                before = self.at(
                    position - 1 if self.at(position - 1).text != ":" else position - 2
                )
                field = before.text if before.kind == WORD else ""
                stack.append(Block(token, field, position))
            elif stack and token.text == CLOSING[stack[-1].opening.text]:
                stack.pop()
        return stack

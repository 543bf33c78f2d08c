"""Config files that are templates nobody filled in, in the five spellings seen in the wild. Pure.

${x}   $X   {{ x }}   a bare word such as MAX_BATCH   a comment in a value's place such as #DTYPE
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from naiad.config.hints.lexer import WORD, Source, Token
from naiad.config.hints.spelling import type_suggestion

SHOWN_MAX: Final = 5
"""Further places named in one message."""

_MARKED: Final = re.compile(
    r"""\$\{[^}\n]{0,200}\}? | \{\{[^\n]{0,200}?\}\} | \{%[^\n]{0,200}?%\} | \$[A-Za-z_]\w*
      | <[A-Z][A-Z0-9_]*> | @[A-Za-z]\w*@ | %[A-Za-z]\w*%""",
    re.VERBOSE,
)
_BARE: Final = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*|__\w+__")
_IN_COMMENT: Final = re.compile(r"#\s?([A-Z][A-Z0-9_]{2,})\b")
_NO_TEMPLATES: Final = frozenset(
    {
        "TRUE",
        "FALSE",
        "YES",
        "NO",
        "GPU",
        "CPU",
        "AUTO",
        "MODEL",
        "INF",
        "MAX",
        "MIN",
        "HIGH",
        "HIGHEST",
        "LOW",
        "LOWEST",
        "NORMAL",
        "DEFAULT",
    }
)
"""Words in capitals that stand for a value, if not the right one."""
_ENUM_PREFIXES: Final = ("TYPE_", "KIND_", "FORMAT_", "BATCH_", "CONTROL_", "PRIORITY_")


class Template(NamedTuple):
    """A place that somebody was to fill: `${name}`, `{{ name }}`, or a word in capitals."""

    text: str
    line: int
    column: int

    @property
    def noun(self) -> str:
        return "word" if self.text[0] not in "${" else "variable"

    @property
    def remedy(self) -> str:
        """How this spelling is usually filled."""
        if self.text.startswith("${"):
            return (
                "fill the template first (fill_template.py of the TensorRT-LLM backend, or "
                "envsubst), or write the value by hand"
            )
        if self.text.startswith("$"):
            return (
                "fill the template first (envsubst < template > config.pbtxt), or write the value"
            )
        if self.text.startswith("{"):
            return "render the template first (Jinja2), or write the value by hand"
        return (
            "the project's own export script usually replaces it (sed 's/"
            f"{self.text.lstrip('#')}/VALUE/'); run it, or write the value by hand"
        )


def marked_templates(source: Source) -> list[Template]:
    """All templates with marks ($, braces, ...), in strings too, but not in comments."""
    comment_at = {token.line: token.column for token in source.comments}
    return [
        Template(match.group(), number, match.start() + 1)
        for number, line in enumerate(source.lines, start=1)
        for match in _MARKED.finditer(line)
        if match.start() + 1 < comment_at.get(number, len(line) + 2)
    ]


def template_at(source: Source, index: int) -> Template | None:
    """The marked template that covers the token at an index, or the bare word that is one."""
    token = source.at(index)
    for template in marked_templates(source):
        end = template.column + len(template.text)
        if template.line == token.line and template.column <= token.column < end:
            return template
    return Template(token.text, token.line, token.column) if is_bare(token) else None


def comment_template(source: Source, field: Token) -> Template | None:
    """The #DTYPE after a field that has no value."""
    for comment in source.comments:
        match = _IN_COMMENT.match(comment.text)
        if match and comment.line == field.line and comment.column > field.column:
            return Template(f"#{match.group(1)}", comment.line, comment.column)
    return None


def is_bare(token: Token) -> bool:
    """A word in capitals that no enum could mean."""
    if token.kind != WORD or token.text.startswith(_ENUM_PREFIXES):
        return False
    if token.text in _NO_TEMPLATES or type_suggestion(token.text):
        return False
    return _BARE.fullmatch(token.text) is not None and len(token.text) > 1


def others(source: Source, first: Template) -> str:
    """Where else the file has templates: " (also $Y at 9:3)", or nothing."""
    bare = [
        Template(token.text, token.line, token.column)
        for index, token in enumerate(source.tokens)
        if is_bare(token) and source.at(index - 1).text in (":", ",", "[")
    ]
    rest = [one for one in [*marked_templates(source), *bare] if one[1:] != first[1:]]
    if not rest:
        return ""
    rest.sort(key=lambda one: one[1:])
    shown = ", ".join(f"{one.text} at {one.line}:{one.column}" for one in rest[:SHOWN_MAX])
    more = len(rest) - SHOWN_MAX
    return f" (also {shown}{f' and {more} more' if more > 0 else ''})"

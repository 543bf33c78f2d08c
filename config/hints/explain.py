"""From protobuf's complaint to a fault that says what is wrong and what to write instead.

The first rule that applies speaks; what none knows keeps protobuf's own text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from naiad.config.faults import Fault
from naiad.config.hints import structure, values
from naiad.config.hints.lexer import Source
from naiad.config.hints.scene import FALLBACK_REMEDY, Finding, Scene

TEXT_CHARS_MAX: Final = 600
"""A message is cut here: it quotes what a file holds."""

RULES: Final[tuple[Callable[[Scene], Finding | None], ...]] = (
    structure.other_kind,
    structure.smart_quote,
    values.template,
    values.missing_value,
    structure.comment_mark,
    structure.open_string,
    structure.list_commas,
    values.integer,
    values.string,
    values.enum,
    values.boolean,
    structure.twice,
    values.bare_word_line,
    structure.unknown_field,
    structure.colon,
    structure.block,
    structure.bracket,
)
"""From the most telling sign to the least."""


def explain(text: str, line: int, column: int, reason: str, schema: Any, *, file: str) -> Fault:
    """The fault for protobuf's complaint `reason` at a place of a text.

    `schema` is ModelConfig's descriptor; `file` starts the fault's place (file:line:column).
    """
    source = Source(text)
    scene = Scene(source, source.index_at(line, column), reason, schema)
    for rule in RULES:
        finding = rule(scene)
        if finding is not None:
            break
    else:
        plain = reason.replace('Message type "inference.', 'Message "').rstrip(".")
        finding = Finding(line, column, plain, FALLBACK_REMEDY)
    place = f"{file}:{finding.line}:{finding.column}"
    return Fault(place, _shown(finding.message), _shown(finding.remedy))


def _shown(text: str) -> str:
    """Without characters a terminal would act on, and of bounded length."""
    cut = text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)

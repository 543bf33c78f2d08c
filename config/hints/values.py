"""Rules for values: templates nobody filled in, no value at all, values of a wrong kind."""

from __future__ import annotations

import re
from typing import Final

from naiad.config.faults import listed
from naiad.config.hints.lexer import NUMBER, STRING, WORD, Source
from naiad.config.hints.scene import Finding, Scene
from naiad.config.hints.spelling import FALSE_WORDS, TRUE_WORDS, enum_hint
from naiad.config.hints.templates import (
    Template,
    comment_template,
    is_bare,
    others,
    template_at,
)

_ENUM: Final = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named')


def template(scene: Scene) -> Finding | None:
    found = template_at(scene.source, scene.index)
    if found is None or (found.text == scene.token.text and not _expects_value(scene)):
        return None
    return _unreplaced(scene, found, scene.field)


def _expects_value(scene: Scene) -> bool:
    if "Expected string" in scene.reason and "_" not in scene.token.text:
        return False  # RESNET50 is a name without quotes
    return scene.before.text in (":", "[", ",") and "no field named" not in scene.reason


def _unreplaced(scene: Scene, found: Template, field: str) -> Finding:
    where = f" as the value of {field}" if field else ""
    message = f"unreplaced template {found.noun} {found.text}{where}{others(scene.source, found)}"
    return Finding(found.line, found.column, message, found.remedy)


def missing_value(scene: Scene) -> Finding | None:
    source, index = scene.source, scene.index
    if not _lacks_value(source, index):
        return None
    field = source.field_before(index)
    if field is None:
        return None
    template = comment_template(source, field)
    if template is not None:
        return _unreplaced(scene, template, field.text)
    also = [
        f"{name.text} at {name.place}"
        for position in range(index + 1, len(source.tokens))
        if _lacks_value(source, position) and (name := source.field_before(position)) is not None
    ]
    rest = f" (nor have {listed(also)})" if also else ""
    return scene.finding(
        f'field "{field.text}" has no value{rest}',
        f"write {field.text}: and its value, or remove the line",
        field,
    )


def _lacks_value(source: Source, index: int) -> bool:
    """A colon before the token, and the token is the beginning of something else."""
    token, colon = source.at(index), source.at(index - 1)
    if colon.text != ":":
        return False
    if token.text in ("", "}", "]", ">", ",", ";", ":"):
        return True
    starts_field = token.kind == WORD and source.at(index + 1).text in (":", "{", "[")
    return starts_field and token.line > colon.line


def integer(scene: Scene) -> Finding | None:
    text, field = scene.token.text, scene.field or "the field"
    if "Value out of range" in scene.reason:
        return scene.finding(f"{field}: {text} is out of range", "write a number that fits")
    if "Couldn't parse integer" not in scene.reason:
        return None
    if field == "gpus" and text == "{":
        return scene.finding("gpus takes GPU numbers, not blocks", "write gpus: [ 0 ]")
    bare = text.strip("\"'")
    remedy = f"write {field}: and a whole number"
    if scene.token.kind == STRING and bare.lstrip("-").isdecimal():
        remedy = f"write {bare} without quotes"
    elif scene.token.kind == NUMBER and re.fullmatch(r"-?\d+\.0*", bare):
        remedy = f"write {bare.partition('.')[0]}"
    elif bare.isdecimal() and bare.startswith("0"):
        remedy = f"write {int(bare)} without the leading zero"
    return scene.finding(f"{field} takes a whole number, got {text}", remedy)


def string(scene: Scene) -> Finding | None:
    if "Expected string but found" not in scene.reason:
        return None
    rest = scene.source.lines[scene.token.line - 1][scene.token.column - 1 :]
    value = re.split(r"[\s,;#}\]]", rest, maxsplit=1)[0]
    field = scene.field or "the field"
    return scene.finding(
        f"{field} takes a string in quotes, got {value}", f'write {field}: "{value}"'
    )


def enum(scene: Scene) -> Finding | None:
    match = _ENUM.search(scene.reason)
    if match is None:
        return None
    kind = scene.schema.file.pool.FindEnumTypeByName(match["type"])
    known = [value.name for value in kind.values if value.name != "TYPE_INVALID"]
    field = scene.field or "the field"
    return scene.finding(
        f"{field}: no {kind.name} named {scene.token.text}",
        enum_hint(scene.token.text, kind.name, known),
    )


def boolean(scene: Scene) -> Finding | None:
    if 'Expected "true" or "false"' not in scene.reason:
        return None
    bare = scene.token.text.strip("\"'").lower()
    word = "true" if bare in TRUE_WORDS else "false" if bare in FALSE_WORDS else "true or false"
    field = scene.field or "the field"
    return scene.finding(f"{field} takes true or false, got {scene.token.text}", f"write {word}")


def bare_word_line(scene: Scene) -> Finding | None:
    """A line that is nothing but a template word, where a field should stand."""
    if is_bare(scene.token) and "no field named" in scene.reason:
        token = scene.token
        return _unreplaced(scene, Template(token.text, token.line, token.column), "")
    return None

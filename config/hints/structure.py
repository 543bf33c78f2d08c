"""Rules for everything around values: another kind of file, stray marks, fields, brackets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from naiad.config.faults import did_you_mean, listed
from naiad.config.hints.lexer import CLOSING, OPEN_STRING, STRING, Token
from naiad.config.hints.scene import FALLBACK_REMEDY, Finding, Scene
from naiad.config.hints.spelling import FIELD_SYNONYMS

_JSON: Final = "JSON: field names stand without quotes and the outermost braces are left out"
_SMART_QUOTES: Final = re.compile("[“”„‟«»‘’‚]")
_PYTHON_WORDS: Final = frozenset({"import", "from", "def", "class", "print", "async", "if", "with"})
_YAML_ITEM: Final = re.compile(r"^\s*-\s+[\w\"'{]", re.MULTILINE)
_NO_FIELD: Final = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>.*)"')
_TWICE: Final = re.compile(r'should not have multiple "(?P<name>\w+)" fields')
_ONEOF: Final = re.compile(r'Field "(?P<name>\w+)" is specified along with field "(?P<other>\w+)"')


def other_kind(scene: Scene) -> Finding | None:
    source = scene.source
    first, second = source.at(0), source.at(1)
    text = source.text.lstrip()
    kind = ""
    if (first.text, second.text) == ("[", "{") or (
        first.text == "{" and second.kind in (STRING, OPEN_STRING)
    ):
        kind = _JSON
    elif (text.startswith("#!") and "python" in source.lines[0]) or (
        first.text == "@" or (first.text in _PYTHON_WORDS and second.text not in (":", "{"))
    ):
        kind = "a Python script"
    elif first.text == "<" and second.text in ("!", "html", "HTML", "?"):
        kind = "a web page: download the raw file instead"
    elif text.startswith("---") or (_YAML_ITEM.search(source.text) and scene.token.text != "]"):
        kind = 'YAML: lists are written input [ { ... } ], strings as "..."'
    if not kind:
        return None
    return scene.finding(
        f"not a model configuration; the file looks like {kind}",
        f"write protobuf text format; {FALLBACK_REMEDY}",
        first,
    )


def smart_quote(scene: Scene) -> Finding | None:
    line = scene.source.lines[min(scene.token.line, len(scene.source.lines)) - 1]
    match = _SMART_QUOTES.search(line)
    if match is None:
        return None
    place = Token("mark", match.group(), scene.token.line, match.start() + 1)
    return scene.finding(
        f"typographic quote {match.group()} where a plain one belongs",
        "write \" or ' (a word processor or a web page changed it)",
        place,
    )


def comment_mark(scene: Scene) -> Finding | None:
    following = scene.source.at(scene.index + 1)
    if scene.token.text == "/" and following.text in ("/", "*"):
        return scene.finding(f"{'/' + following.text} is no comment here", "start comments with #")
    if scene.token.text.startswith("--"):
        return scene.finding(f"unexpected {scene.token.text}", "start comments with #")
    return None


def open_string(scene: Scene) -> Finding | None:
    for token in (scene.token, scene.before):
        if token.kind == OPEN_STRING:
            quote = token.text[0]
            return scene.finding(
                f"string without a closing {quote}",
                f"close it with {quote} on the same line",
                token,
            )
    return None


def list_commas(scene: Scene) -> Finding | None:
    if scene.before.text == "," and scene.token.text == "]":
        return scene.finding(
            "trailing comma before ]", "remove the comma after the last element", scene.before
        )
    if 'Expected ","' in scene.reason:
        blocks = scene.source.open_blocks(scene.index)
        if scene.token.text == "":
            return _unclosed(scene)
        field = blocks[-1].field if blocks else ""
        return scene.finding(
            f"missing comma between elements of the list{f' {field}' if field else ''}",
            f"write a comma before {scene.token.text}",
        )
    return None


def twice(scene: Scene) -> Finding | None:
    match = _TWICE.search(scene.reason) or _ONEOF.search(scene.reason)
    if match is None:
        return None
    source, name = scene.source, match["name"]
    other = match.groupdict().get("other") or name
    second = next((i for i in range(scene.index, -1, -1) if source.at(i).text == name), scene.index)
    blocks = source.open_blocks(second)
    first = next(
        (
            source.at(i)
            for i in range(second - 1, -1, -1)
            if source.at(i).text == other and source.open_blocks(i) == blocks
        ),
        None,
    )
    where = f" (first at {first.place})" if first else ""
    if other != name:
        message = f"{name} and {other} exclude each other"
        where = f" ({other} is at {first.place})" if first else ""
    else:
        message = f"{name} is set twice"
    return scene.finding(message + where, "keep one of them", source.at(second))


def unknown_field(scene: Scene) -> Finding | None:
    match = _NO_FIELD.search(scene.reason)
    if match is None:
        return None
    name = match["name"]
    message = scene.schema.file.pool.FindMessageTypeByName(match["type"])
    known = [field.name for field in message.fields]
    blocks = scene.source.open_blocks(scene.index)
    inside = next((block.field for block in reversed(blocks) if block.field), "")
    synonym = FIELD_SYNONYMS.get(name.lower(), "")
    homes = list(_homes(scene.schema, name))
    if synonym in known:
        remedy = f'did you mean "{synonym}"?'
    elif name + "s" in known or name.removesuffix("s") in known:
        remedy = f'did you mean "{name + "s" if name + "s" in known else name[:-1]}"?'
    elif "" in homes and blocks:
        opening = blocks[-1].opening
        remedy = f'it belongs outside; is a "}}" missing for the "{{" at {opening.place}?'
    elif homes:
        remedy = f"it belongs inside {homes[0]} {{ ... }}"
    else:
        remedy = did_you_mean(name, known) or f"known fields: {listed(known)}"
    where = f' in "{inside}"' if inside else ""
    return scene.finding(f'no field named "{name}"{where}', remedy)


def _homes(schema: Any, name: str, path: str = "") -> Iterator[str]:
    """Paths of the blocks that have a field of this name, outermost first ("" is the top)."""
    if name in schema.fields_by_name:
        yield path
    for field in schema.fields:
        inner = field.message_type
        if inner is not None and not inner.GetOptions().map_entry:
            yield from _homes(inner, name, f"{path}.{field.name}" if path else field.name)


# --- Brackets and colons -------------------------------------------------------------------


def colon(scene: Scene) -> Finding | None:
    if 'Expected ":"' not in scene.reason:
        return None
    name, text = scene.before.text, scene.token.text
    if text == "=":
        return scene.finding(f'"=" after {name}', f"write {name}: and the value")
    if text in ("{", "<"):
        return scene.finding(f"{name} takes a value, not a block", f"write {name}: and the value")
    return scene.finding(f'":" is missing after {name}', f"write {name}: {text}")


def block(scene: Scene) -> Finding | None:
    if 'Expected "{"' not in scene.reason:
        return None
    field, text = scene.field, scene.token.text
    if field == "value":
        value = text if scene.token.kind == STRING else f'"{text}"'
        return scene.finding(
            f"a parameter's value is a block, got {text}",
            f"write value {{ string_value: {value} }}",
        )
    name = field or "the field"
    return scene.finding(f"{name} is a block, got {text}", f"write {name} {{ ... }}")


def bracket(scene: Scene) -> Finding | None:
    text = scene.token.text
    blocks = scene.source.open_blocks(scene.index)
    if (text == "" and blocks) or 'Expected "}"' in scene.reason:
        return _unclosed(scene)
    if text in CLOSING.values():
        if not blocks:
            return scene.finding(f'"{text}" without an opening bracket', "remove it")
        if "Expected identifier" in scene.reason:
            return _unclosed(scene)
    return None


def _unclosed(scene: Scene) -> Finding | None:
    """The innermost bracket that is open here, or at the end when protobuf ran into it."""
    index = len(scene.source.tokens) if 'Expected "}"' in scene.reason else scene.index
    blocks = scene.source.open_blocks(index)
    if not blocks:
        return None
    block, found = blocks[-1], scene.source.at(index)
    of_field = f" of {block.field}" if block.field else ""
    where = f'found "{found.text}"' if found.text else "the file ends"
    return scene.finding(
        f'"{block.opening.text}"{of_field} opened at {block.opening.place} is not closed, {where}',
        f'write "{CLOSING[block.opening.text]}" where the block ends',
        found,
    )

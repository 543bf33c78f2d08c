"""config.pbtxt to JSON and back, with protobuf's own text parser; faults with file:line:column.

Only this module (with proto_json) loads protobuf. It reads bytes, no files, and raises nothing for
what an operator wrote: faults are values.
"""

from __future__ import annotations

import codecs
import re
import warnings
from typing import Final, NamedTuple

from google.protobuf import text_format
from google.protobuf.message import Message

from naiad.config.faults import Fault
from naiad.config.hints.explain import explain
from naiad.config.hints.lexer import STRING, Source
from naiad.config.hints.scene import FALLBACK_REMEDY
from naiad.config.model import Json
from naiad.config.proto.model_config_pb2 import ModelConfig
from naiad.config.proto_json import json_to_message, message_to_json

FILE_NAME: Final = "config.pbtxt"
CONFIG_BYTES_MAX: Final = 2**20
"""Real files are a few kilobytes; more is a wrong file, and parsing takes seconds per megabyte."""
DEPTH_MAX: Final = 64
"""Brackets within brackets; the schema itself is 7 deep, and the parser recurses."""

_BAD_ESCAPE: Final = re.compile(r"(?:\\\\)*(\\[^abfnrtvxuU0-7'\"?\\])")
_PLACE: Final = re.compile(r"^\d+:\d+ : ('(?s:.*?)': )?")


class Parsed(NamedTuple):
    """`json` is None exactly when there are syntax faults."""

    json: Json | None
    faults: list[Fault]


def parse(data: bytes, *, file: str = FILE_NAME) -> Parsed:
    """The JSON form of a config.pbtxt. A byte order mark and CRLF are accepted."""
    text, fault = _decode(data, file)
    if fault is not None:
        return Parsed(None, [fault])
    message = ModelConfig()
    fault = _parse_into(message, text, file)
    if fault is not None:
        return Parsed(None, [fault])
    return Parsed(*message_to_json(message))


def render(config: Json) -> str:
    """The config.pbtxt of a JSON config; what has its default value is left out.

    Raises RequestError when it is no ModelConfig.
    """
    return text_format.MessageToString(
        json_to_message(config), as_utf8=True, use_short_repeated_primitives=True
    )


def _decode(data: bytes, file: str) -> tuple[str, Fault | None]:
    if len(data) > CONFIG_BYTES_MAX:
        fault = Fault(
            file,
            f"more than {CONFIG_BYTES_MAX} bytes, expected at most that many",
            "is it the model itself? A config.pbtxt is a small text file",
        )
        return "", fault
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "", Fault(f"{file}:1:1", "the file is UTF-16", "save it as UTF-8")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n"), None
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        return "", Fault(f"{file}:{line}:{column}", message, "save the file as UTF-8")


def _parse_into(message: Message, text: str, file: str) -> Fault | None:
    depth = _depth(text)
    if depth > DEPTH_MAX:
        return Fault(file, f"brackets nested {depth} deep, expected at most {DEPTH_MAX}")
    try:
        with warnings.catch_warnings():
            # Python only warns of an unknown escape; protobuf's grammar does not have it.
            warnings.filterwarnings("error", message=".*invalid.*escape sequence")
            text_format.Parse(text, message)
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        reason = _PLACE.sub("", str(error))
        return explain(text, line, column, reason, message.DESCRIPTOR, file=file)
    except DeprecationWarning:
        return _bad_escape(text, file)
    except ValueError as error:  # an escape in a string that is no text, such as "\xff"
        return Fault(file, f"a value cannot be read: {error}", FALLBACK_REMEDY)
    return None


def _bad_escape(text: str, file: str) -> Fault:
    for token in Source(text).tokens:
        match = _BAD_ESCAPE.search(token.text) if token.kind == STRING else None
        if match is not None:
            place = f"{file}:{token.line}:{token.column + match.start(1)}"
            message = f"unknown escape {match.group(1)} in a string"
            return Fault(place, message, "write \\\\ for a backslash")
    return Fault(f"{file}:1:1", "a string has an unknown escape", FALLBACK_REMEDY)


def _depth(text: str) -> int:
    deepest = depth = 0
    for character in text:
        if character in "{[<":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]>":
            depth -= 1
    return deepest

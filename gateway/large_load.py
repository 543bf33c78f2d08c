"""The JSON of a load, whose strings may be files of many megabytes: read in steps.

Long strings are taken out of the text, which is then walked through as that of an inference
request; what they mean is found a piece at a time, and so are the bytes behind their base64.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable
from typing import Final

from naiad.client.requests import Buffer
from naiad.gateway.http_parameters import Json, object_of, text_of
from naiad.gateway.json_slices import (
    REST_BYTES_MAX,
    SLICE_BYTES,
    SPACE_BYTES_MAX,
    Cut,
    window_of,
    without_strings,
)
from naiad.gateway.json_spaces import Squeezed, squeezed
from naiad.gateway.json_strings import pieces
from naiad.gateway.large_json import MARK_BYTES, walked
from naiad.gateway.long_work import Steps
from naiad.gateway.uploads import PREFIX
from naiad.protocol.errors import RequestError

STRING_BYTES_MIN: Final = 4 * 1024
"""Shorter strings are not taken out."""
_QUOTE: Final = re.compile(b'"')
_GROUP_CHARS: Final = 4
"""Of base64 that stand for three bytes."""

Place = tuple[int, int]
"""Of what is in a string: from, to."""


def load_parameters(body: Buffer, config_bytes_max: int) -> Steps[Json]:
    """The `parameters` in the body of a load, with the bytes of its files.

    Raises RequestError for what is no such body.
    """
    short = yield from squeezed(memoryview(body))
    cut = yield from _cut(short.text)
    found = yield from walked(cut, frozenset({"parameters"}), short.position)
    parameters = object_of(found, "parameters")
    unread = dict(cut.taken)
    for name, value in parameters.items():
        place = unread.pop(value, None) if type(value) is str else None
        if name.startswith(PREFIX):
            parameters[name] = yield from _file(short, place, name, parameters)
        elif place is not None:
            parameters[name] = yield from _config(short, place, config_bytes_max)
    for place in unread.values():  # nobody wants it: it has to be JSON all the same
        for _ in pieces(short.text, *place, short.position):
            yield
    return parameters


def _cut(text: memoryview) -> Steps[Cut[Place]]:
    cut: Cut[Place] = Cut(
        secrets.token_hex(MARK_BYTES), f"strings from {STRING_BYTES_MIN} bytes on"
    )
    kept = start = 0
    opened = -1  # where the string begins in which we are
    size = SLICE_BYTES
    while start < len(text):
        window = window_of(text, start, size)
        size = min(SLICE_BYTES, 2 * len(window))
        bare, _ = without_strings(window, opened >= 0)
        for quote in _QUOTE.finditer(bare):
            position = start + quote.start()
            if opened < 0:
                opened = position + 1
                continue
            if position - opened >= STRING_BYTES_MIN and not _is_key(text, position + 1):
                cut.keep(bytes(text[kept:opened]))
                cut.take_out(position - opened, (opened, position), quote="")
                kept = position
            opened = -1
        start += len(window)
        if opened < 0:
            cut.keep(bytes(text[kept:start]))
            kept = start
        yield
    cut.keep(bytes(text[kept : kept + REST_BYTES_MAX + 1]))
    return cut


def _is_key(text: memoryview, position: int) -> bool:
    """Whether a colon follows, so that what ends there is the name of something."""
    behind = bytes(text[position : position + 2 * SPACE_BYTES_MAX + 1])
    return behind.lstrip()[:1] == b":"


def _config(short: Squeezed, place: Place, bytes_max: int) -> Steps[str]:
    parts = []
    size = 0
    for piece in pieces(short.text, *place, short.position):
        size += len(piece)
        if size > bytes_max:
            raise RequestError(
                f"Invalid config override: {size} bytes or more, expected at most {bytes_max}"
            )
        parts.append(piece)
        yield
    return "".join(parts)


def _file(short: Squeezed, place: Place | None, name: str, parameters: Json) -> Steps[Buffer]:
    """The bytes that its base64 stands for."""
    found = bytearray()
    left = ""  # the last characters, which alone may be padding
    try:
        for piece in _pieces(short, place, name, parameters):
            whole = left + piece
            left = whole[len(whole) - (len(whole) % _GROUP_CHARS or _GROUP_CHARS) :]
            before = whole.removesuffix(left)
            decoded = base64.b64decode(before, validate=True)
            if "=" in before:
                raise ValueError("it goes on behind its padding")
            found += decoded
            yield
        found += base64.b64decode(left, validate=True)
    except ValueError as fault:
        raise RequestError(f"load parameter '{name:.80}': no base64: {fault}") from fault
    return found


def _pieces(short: Squeezed, place: Place | None, name: str, parameters: Json) -> Iterable[str]:
    if place is None:
        return [text_of(parameters, name)]
    return pieces(short.text, *place, short.position)

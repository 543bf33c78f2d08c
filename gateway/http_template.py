"""Requests that differ in their tensors' bytes alone: parsed once, filled in ever after. Pure.

The JSON of a binary request is the same text again and again, save its `id`. What follows from that
text is kept with it: names, shapes, where each tensor lies, how the answer is written. A text that
asks for anything but binary tensors both ways makes no template.
"""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Final

from naiad.client.requests import INLINE, SMALL_BYTES_MAX, PackedInput, Prepared
from naiad.gateway.calls import InferCall
from naiad.gateway.users import NOBODY, User

TEXT_BYTES_MAX: Final = 2048
BODY_BYTES_MAX: Final = SMALL_BYTES_MAX
"""Of a request filled into a template: copying its tensors is cheaper than referring to them."""
TEMPLATES_MAX: Final = 1024
"""Beyond, all are forgotten and made again."""

LABEL_CHARS_MAX: Final = 128
"""Of an id that is split off; a longer one is parsed and judged with the rest."""

_ID: Final = b'{"id":"'
_ID_END: Final = b'",'
_CHARACTER_BYTES: Final = 4

Row = tuple[str, str, tuple[int, ...], memoryview | None]


class Template:
    """One text and all that follows from it. `label` is not part of it."""

    __slots__ = ("_inputs", "_json", "_parts", "_rows", "_version", "data_bytes", "model")

    def __init__(self, call: InferCall, parts: Prepared) -> None:
        self.model = call.model
        self._version = call.version
        self._parts = parts
        self._inputs = parts.inputs
        self.data_bytes = parts.inline_bytes
        """Of the tensors behind the text."""
        self._rows: tuple[object, ...] = ()
        self._json = b""

    def filled(self, body: bytes, offset: int, label: str, user: User = NOBODY) -> Prepared:
        """The request whose tensors begin at `offset` of the body and are exactly the rest."""
        parts = self._parts
        inputs: tuple[PackedInput, ...]
        if len(self._inputs) == 1:
            (one,) = self._inputs
            inputs = ((*one[:7], body[offset:]),)
        else:
            filled = []
            for one in self._inputs:
                end = offset + one[6]
                filled.append((*one[:7], body[offset:end]))
                offset = end
            inputs = tuple(filled)
        tail = parts.tail
        characters = len(label)
        if user is not NOBODY:
            tail = (*tail[:4], *user, *tail[6:])
            characters += len(user[0]) + len(user[1])
        return Prepared(
            (self.model, self._version, label),
            inputs,
            tail,
            None,
            parts.inline_bytes,
            parts.header_bytes + _CHARACTER_BYTES * characters,
        )

    def answered(self, version: int, rows: Sequence[Row], label: str) -> bytes:
        """The JSON before the binary outputs `rows`, none of which is empty or elsewhere."""
        known = (version, *[(row[0], row[1], row[2], len(row[3] or b"")) for row in rows])
        if known != self._rows:
            self._json = self._written(version, rows)
            self._rows = known
        if not label:
            return self._json
        return b"".join((_ID, label.encode(), _ID_END, self._json[1:]))

    def _written(self, version: int, rows: Sequence[Row]) -> bytes:
        texts = [
            f'{{"name":{encode_basestring(name)},"datatype":"{datatype}",'
            f'"shape":[{",".join(map(str, shape))}],'
            f'"parameters":{{"binary_data_size":{len(data or b"")}}}}}'
            for name, datatype, shape, data in rows
        ]
        text = (
            f'{{"model_name":{encode_basestring(self.model)},"model_version":"{version}",'
            f'"outputs":[{",".join(texts)}]}}'
        )
        return text.encode("utf-8", "backslashreplace")


def split_label(text: bytes) -> tuple[str, bytes]:
    """(id, text without it) where the id comes first and is plain; else ("", text)."""
    if not text.startswith(_ID):
        return "", text
    end = text.find(_ID_END, len(_ID), len(_ID) + LABEL_CHARS_MAX)
    label = text[len(_ID) : end]
    if end < 0 or not label.isalnum():
        return "", text
    return label.decode("ascii"), b"{" + text[end + len(_ID_END) :]


def template_of(call: InferCall, parts: Prepared) -> Template | None:
    """A template of a call that was parsed from a text without id, if it makes one.

    `parts` are what became of the call. Whom it was for is not part of the text.
    """
    asks_plainly = not (call.id or call.parameters or call.priority or call.timeout_us)
    if not asks_plainly or call.sequence is not None or parts.memory is not None:
        return None
    if any(one[3] != INLINE for one in parts.inputs) or parts.inline_bytes > BODY_BYTES_MAX:
        return None
    if not all(isinstance(one.data, memoryview) for one in call.inputs):
        return None  # JSON arrays
    for one in call.outputs:
        if not one.is_binary or one.classification or one.region is not None:
            return None
    if not call.outputs and not call.is_binary_by_default:
        return None
    return Template(call, parts)

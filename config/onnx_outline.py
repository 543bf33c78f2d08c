"""The outline of an ONNX file: whether it is one, its inputs and outputs, and the files it needs.

Walks protobuf's fields without loading protobuf or the file: weights are stepped over, however
large. The numbers of the fields are those of ONNX's public schema. Reads, decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final, NamedTuple

FIELDS_MAX: Final = 2_000_000
"""Of one file: a model of 100,000 nodes and as many weights has a tenth."""
TEXT_BYTES_MAX: Final = 4096
"""Of one name."""

_FIELD_MAX: Final = 100
"""Messages of ONNX have numbers up to 26; more than this is none of them."""
_VARINT_BYTES_MAX: Final = 10
_VARINT, _FIXED_64, _MESSAGE, _FIXED_32 = 0, 1, 2, 5
_GRAPH: Final = 7
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12
_TENSOR_NAME, _EXTERNAL_DATA = 8, 13
_KEY, _VALUE = 1, 2
_VALUE_NAME, _VALUE_TYPE, _TENSOR_TYPE, _ELEMENT_TYPE, _SHAPE = 1, 2, 1, 1, 2


class Broken(Exception):
    """It is not protobuf of this form from its first byte to its last."""


class _Field(NamedTuple):
    """`begin` to `end` is a message or text; a number is in `number`."""

    key: int
    kind: int
    begin: int
    end: int
    number: int


@dataclass(slots=True)
class Outline:
    """Element types as ONNX numbers them, 0 where none is told. `external` are the names of files
    beside it that hold weights. Inputs with a value of their own are left out. `without_shape` are
    tensors whose number of dimensions is not told."""

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    external: set[str] = field(default_factory=set)
    without_shape: set[str] = field(default_factory=set)


def read_outline(file: BinaryIO) -> Outline:
    """Raises Broken, and OSError."""
    return _Walk(file).outline()


class _Walk:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = FIELDS_MAX

    def outline(self) -> Outline:
        found = Outline()
        initialised: set[str] = set()
        size = self._file.seek(0, os.SEEK_END)
        graphs = [one for one in self._messages(0, size, _GRAPH) if one.end > one.begin]
        if not graphs:
            raise Broken
        for graph in graphs:
            for one in self._fields(graph.begin, graph.end):
                if one.kind != _MESSAGE:
                    continue
                if one.key == _INITIALIZER:
                    initialised.add(self._initializer(one, found.external))
                elif one.key == _INPUT:
                    self._value(one, found.inputs, found.without_shape)
                elif one.key == _OUTPUT:
                    self._value(one, found.outputs, found.without_shape)
        for name in initialised:
            found.inputs.pop(name, None)
        return found

    def _initializer(self, tensor: _Field, external: set[str]) -> str:
        name = ""
        for one in self._fields(tensor.begin, tensor.end):
            if one.kind == _MESSAGE and one.key == _TENSOR_NAME:
                name = self._text(one)
            elif one.kind == _MESSAGE and one.key == _EXTERNAL_DATA:
                pair = {part.key: part for part in self._fields(one.begin, one.end)}
                if {_KEY, _VALUE} <= pair.keys() and self._text(pair[_KEY]) == "location":
                    external.add(self._text(pair[_VALUE]))
        return name

    def _value(self, value: _Field, into: dict[str, int], without_shape: set[str]) -> None:
        name, element, has_shape = "", 0, True
        for one in self._fields(value.begin, value.end):
            if one.key == _VALUE_NAME:
                name = self._text(one)
            elif one.key == _VALUE_TYPE:
                for kind in self._messages(one.begin, one.end, _TENSOR_TYPE):
                    parts = list(self._fields(kind.begin, kind.end))
                    numbers = [part.number for part in parts if part.key == _ELEMENT_TYPE]
                    element = numbers[-1] if numbers else 0
                    has_shape = any(part.key == _SHAPE for part in parts)
        into[name] = element
        if not has_shape:
            without_shape.add(name)

    def _messages(self, begin: int, end: int, key: int) -> list[_Field]:
        return [one for one in self._fields(begin, end) if (one.key, one.kind) == (key, _MESSAGE)]

    def _fields(self, begin: int, end: int) -> Iterator[_Field]:
        position = begin
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise Broken
            self._file.seek(position)
            head = self._file.read(2 * _VARINT_BYTES_MAX)
            tag, used = _varint(head, 0)
            key, kind = tag >> 3, tag & 7
            if not used or not 1 <= key <= _FIELD_MAX:
                raise Broken
            number = length = 0
            if kind == _VARINT:
                number, used = _varint(head, used)
            elif kind == _MESSAGE:
                length, used = _varint(head, used)
            else:
                length = {_FIXED_64: 8, _FIXED_32: 4}.get(kind, end)
            content = position + used
            if not used or content + length > end:
                raise Broken
            yield _Field(key, kind, content, content + length, number)
            position = content + length

    def _text(self, one: _Field) -> str:
        self._file.seek(one.begin)
        return self._file.read(min(one.end - one.begin, TEXT_BYTES_MAX)).decode(errors="replace")


def _varint(content: bytes, begin: int) -> tuple[int, int]:
    """(the number, where it ends), or (0, 0) where there is none."""
    number = 0
    for index, byte in enumerate(content[begin : begin + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, begin + index + 1
    return 0, 0

"""Header blocks of HTTP/2 (RFC 7541): decoding with the dynamic table, encoding without. Pure.

A client sends the same block again and again once its names are in the table: a block that left the
table as it was means the same until something changes it, and is looked up instead of decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from naiad.gateway.http2.huffman import decoded as huffman_decoded

TABLE_BYTES_MAX: Final = 4096
"""Of the dynamic table, as the protocol has it when nothing is said."""
BLOCKS_KNOWN_MAX: Final = 64
BLOCK_KNOWN_BYTES_MAX: Final = 1024
FIELDS_MAX: Final = 128
_ENTRY_BYTES: Final = 32
"""What an entry counts beyond its name and value."""
_INTEGER_SHIFT_MAX: Final = 28

Field = tuple[bytes, bytes]
T = TypeVar("T")


class HeaderFault(Exception):
    """A header block that cannot be decoded: the connection cannot go on."""


class HeadersTooLarge(Exception):
    """More header fields, or more bytes in them, than are taken: the connection cannot go on."""


_NO_FIELD: Final[Field] = (b"", b"")
_STATIC: Final[tuple[Field, ...]] = (
    _NO_FIELD,
    *(
        (name, value)
        for name, _, value in (
            entry.partition(b"=")
            for entry in (
                b":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|"
                b":scheme=https|:status=200|:status=204|:status=206|:status=304|:status=400|"
                b":status=404|:status=500|accept-charset|accept-encoding=gzip, deflate|"
                b"accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|"
                b"authorization|cache-control|content-disposition|content-encoding|"
                b"content-language|content-length|content-location|content-range|content-type|"
                b"cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|"
                b"if-none-match|if-range|if-unmodified-since|last-modified|link|location|"
                b"max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|"
                b"retry-after|server|set-cookie|strict-transport-security|transfer-encoding|"
                b"user-agent|vary|via|www-authenticate"
            ).split(b"|")
        )
    ),
)
"""The static table, which begins with entry 1."""
_STATIC_COUNT: Final = len(_STATIC)


class Decoder(Generic[T]):
    """One connection's. `convert` makes of a block's fields what is wanted of them."""

    def __init__(self, convert: Callable[[list[Field]], T], bytes_max: int) -> None:
        self._convert = convert
        self._bytes_max = bytes_max
        self._table: deque[Field] = deque()
        self._table_bytes = 0
        self._table_bytes_max = TABLE_BYTES_MAX
        self._known: dict[bytes, T] = {}
        self._has_changed = False

    def decode(self, block: bytes) -> T:
        """What a whole block means.

        Raises HeaderFault, or HeadersTooLarge for fields beyond the limits.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        self._has_changed = False
        try:
            fields = self._fields(block)
        except (IndexError, ValueError) as fault:
            raise HeaderFault(str(fault)) from fault
        size = sum(len(name) + len(value) + _ENTRY_BYTES for name, value in fields)
        if self._has_changed:
            self._known.clear()
        if size > self._bytes_max or len(fields) > FIELDS_MAX:
            raise HeadersTooLarge(
                f"{len(fields)} header fields of {size} bytes, expected at most {FIELDS_MAX} of"
                f" {self._bytes_max}"
            )
        found = self._convert(fields)
        if not self._has_changed and len(block) <= BLOCK_KNOWN_BYTES_MAX:
            if len(self._known) >= BLOCKS_KNOWN_MAX:
                self._known.clear()
            self._known[block] = found
        return found

    def _fields(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        position, end = 0, len(block)
        while position < end:
            if len(fields) > FIELDS_MAX:  # a table entry may be named by every single byte
                raise HeadersTooLarge(f"more than {FIELDS_MAX} header fields")
            first = block[position]
            if first & 0x80:
                index, position = _integer(block, position, 7)
                fields.append(self._entry(index))
            elif first & 0x40:
                field, position = self._literal(block, position, 6)
                self._add(field)
                fields.append(field)
            elif first & 0x20:
                size, position = _integer(block, position, 5)
                if fields or size > TABLE_BYTES_MAX:
                    raise ValueError(f"a header table of {size} bytes")
                self._has_changed = True
                self._table_bytes_max = size
                self._evict()
            else:
                field, position = self._literal(block, position, 4)
                fields.append(field)
        return fields

    def _entry(self, index: int) -> Field:
        if index <= 0:
            raise ValueError("header index 0")
        if index < _STATIC_COUNT:
            return _STATIC[index]
        return self._table[index - _STATIC_COUNT]

    def _literal(self, block: bytes, position: int, bits: int) -> tuple[Field, int]:
        index, position = _integer(block, position, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, position = _string(block, position)
        value, position = _string(block, position)
        return (name, value), position

    def _add(self, field: Field) -> None:
        self._has_changed = True
        self._table.appendleft(field)
        self._table_bytes += len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._evict()

    def _evict(self) -> None:
        while self._table_bytes > self._table_bytes_max:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + _ENTRY_BYTES


def encoded(fields: list[Field]) -> bytes:
    """A block that needs no table on the other side."""
    out = bytearray()
    for name, value in fields:
        if (name, value) == (b":status", b"200"):
            out.append(0x88)
            continue
        out.append(0)
        for text in (name, value):
            out += _length(len(text))
            out += text
    return bytes(out)


def _length(number: int) -> bytes:
    if number < 0x7F:
        return bytes((number,))
    out = bytearray((0x7F,))
    number -= 0x7F
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[position] & most
    position += 1
    if value < most:
        return value, position
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _INTEGER_SHIFT_MAX:
            raise ValueError("a number in a header block that is too large")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    is_huffman = block[position] & 0x80
    size, position = _integer(block, position, 7)
    text = block[position : position + size]
    if len(text) != size:
        raise ValueError("a header block that ends in the middle of a text")
    return huffman_decoded(text) if is_huffman else text, position + size

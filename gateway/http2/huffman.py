"""Decoding HPACK's Huffman code (RFC 7541, appendix B). Pure.

The code is canonical: the lengths of its 257 codes define it. Bytes are decoded through a table of
(state, byte) that grows as it is needed; a state is the beginning of a code that has been read.
"""

from __future__ import annotations

from typing import Final

_LENGTHS: Final = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28,
    30, 28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11,
    8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20,
    22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21,
    22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23,
    22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26,
    28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27,
    26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
)  # fmt: skip
_END: Final = 256
_PADDING_BITS_MAX: Final = 7

State = tuple[int, int]
"""(length, value) of the bits read of an unfinished code."""
_START: Final[State] = (0, 0)


def _codes() -> dict[State, int]:
    found: dict[State, int] = {}
    code, before = -1, 5
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(_LENGTHS)):
        code = (code + 1) << (length - before)
        before = length
        found[length, code] = symbol
    return found


_SYMBOLS: Final = _codes()
_steps: dict[tuple[State, int], tuple[bytes, State] | None] = {}
"""What a byte gives in a state, and the next state; None: it cannot come there."""


def decoded(data: bytes) -> bytes:
    """The text. Raises ValueError for what is no such text."""
    out: list[bytes] = []
    state = _START
    for byte in data:
        key = (state, byte)
        if key not in _steps:
            _steps[key] = _step(state, byte)
        step = _steps[key]
        if step is None:
            raise ValueError("a Huffman code that has no meaning")
        text, state = step
        out.append(text)
    length, value = state
    if length > _PADDING_BITS_MAX or value != (1 << length) - 1:
        raise ValueError("Huffman text that ends in the middle of a code")
    return b"".join(out)


def _step(state: State, byte: int) -> tuple[bytes, State] | None:
    length, value = state
    text = bytearray()
    for shift in range(7, -1, -1):
        length, value = length + 1, value << 1 | byte >> shift & 1
        symbol = _SYMBOLS.get((length, value))
        if symbol == _END or (symbol is None and length >= 30):
            return None
        if symbol is not None:
            text.append(symbol)
            length, value = _START
    return bytes(text), (length, value)

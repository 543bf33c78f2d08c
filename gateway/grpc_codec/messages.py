"""Messages in a call's body: five bytes before each say its size and whether it is compressed.

Owns what has come of a message that is not whole. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from naiad.client.requests import Buffer
from naiad.gateway.compression import CODINGS, Inflation

PREFIX_BYTES: Final = 5
LARGE_BYTES: Final = 1024 * 1024
"""Of a message whose pieces are put together as they come, not at its end: 0.6 ms for each MiB."""


class MessageFault(Exception):
    """The body is not messages, or not within the limits. `is_too_large` tells these apart."""

    def __init__(self, text: str, *, is_too_large: bool = False) -> None:
        super().__init__(text)
        self.is_too_large = is_too_large


class Assembler:
    """The messages of one body, which arrives in pieces. `memory` makes room for a large one."""

    __slots__ = ("_bytes_max", "_filled", "_flag", "_large", "_memory", "_missing", "_pieces",
                 "held_bytes")  # fmt: skip

    def __init__(self, bytes_max: int, memory: Callable[[int], memoryview]) -> None:
        self._bytes_max = bytes_max
        self._memory = memory
        self._large: memoryview | None = None
        """A message that is not whole,"""
        self._filled = 0
        """how much of it is there,"""
        self._flag = 0
        """and what was said before it."""
        self._pieces: list[bytes] = []
        self._missing = PREFIX_BYTES
        """How many bytes are needed until there is something to do."""
        self.held_bytes = 0

    def feed(self, data: memoryview) -> list[tuple[bool, Buffer]]:
        """(is compressed, content) of each message that is whole now. Raises MessageFault."""
        self.held_bytes += len(data)
        large = self._large
        if large is not None:
            return self._fill(large, data)
        if self._pieces or len(data) < PREFIX_BYTES:
            self._pieces.append(bytes(data))
            if self.held_bytes < self._missing:
                return []
            if self.held_bytes == self._missing and len(self._pieces[0]) > PREFIX_BYTES:
                return [self._whole()]
            data = memoryview(b"".join(self._pieces))
            self._pieces.clear()
        found: list[tuple[bool, Buffer]] = []
        position, end = 0, len(data)
        while end - position >= PREFIX_BYTES:
            size = int.from_bytes(data[position + 1 : position + PREFIX_BYTES], "big")
            flag = data[position]
            if flag > 1:
                raise MessageFault(f"a message with the flag {flag}, expected 0 or 1")
            if size > self._bytes_max:
                raise MessageFault(
                    f"a message of {size} bytes, expected at most {self._bytes_max}",
                    is_too_large=True,
                )
            stop = position + PREFIX_BYTES + size
            if stop > end:
                break
            found.append((flag == 1, bytes(data[position + PREFIX_BYTES : stop])))
            position = stop
        rest = data[position:]
        self.held_bytes = len(rest)
        self._missing = PREFIX_BYTES
        if len(rest) >= PREFIX_BYTES:
            size = int.from_bytes(rest[1:PREFIX_BYTES], "big")
            self._missing += size
            if size >= LARGE_BYTES:
                self._large = self._memory(size)
                self._flag = rest[0]
                self._filled = 0
                return found + self._fill(self._large, rest[PREFIX_BYTES:])
        if rest:
            self._pieces.append(bytes(rest))
        return found

    def _fill(self, large: memoryview, data: memoryview) -> list[tuple[bool, Buffer]]:
        """Put more into the large message; it, and what follows, if it is whole now."""
        start = self._filled
        taken = min(len(data), len(large) - start)
        large[start : start + taken] = data[:taken]
        self._filled += taken
        if self._filled < len(large):
            return []
        whole: list[tuple[bool, Buffer]] = [(self._flag == 1, large)]
        self._large = None
        self._missing, self.held_bytes = PREFIX_BYTES, 0
        rest = data[taken:]
        return whole + self.feed(rest) if rest else whole

    def _whole(self) -> tuple[bool, Buffer]:
        """The one message that the pieces are, copied once."""
        first, *others = self._pieces
        self._pieces = []
        self._missing, self.held_bytes = PREFIX_BYTES, 0
        return first[0] == 1, b"".join((memoryview(first)[PREFIX_BYTES:], *others))


def framed_head(size: int) -> bytes:
    """What comes before a message that is not compressed."""
    return b"\0" + size.to_bytes(4, "big")


def inflation(coding: str, data: Buffer, bytes_max: int) -> Inflation:
    """A compressed message's content, to be taken in pieces. Raises MessageFault."""
    if coding not in CODINGS:
        raise MessageFault(f"a compressed message, but the call's coding is {coding!r:.40}")
    return Inflation(coding, data, bytes_max)

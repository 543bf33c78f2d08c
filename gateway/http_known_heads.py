"""Heads of requests that were parsed before, recognised by their bytes. Pure.

Owns what all connections of a server have learned, within limits. Clients send the same head again
and again, and the parser costs more than all the rest of reading. Never parses: what a head means
the reader says, once.
"""

from __future__ import annotations

from typing import Final

from naiad.gateway.http_message import Head
from naiad.gateway.limits import READ_BYTES

HEAD_KNOWN_BYTES_MAX: Final = 2048
HEADS_KNOWN_MAX: Final = 1024
"""Beyond, all are forgotten and learned again."""

_NOT_KNOWN: Final = (b"transfer-encoding", b"expect")
"""A head with one of these says more than where its body ends."""


class KnownHeads:
    """Heads by their bytes, for all connections of a server."""

    def __init__(self) -> None:
        self.by_text: dict[bytes, Head] = {}

    def learn(self, text: bytes, head: Head, fields_count: int) -> None:
        """Remember a head that the parser has read from these bytes, if they are nothing else."""
        lines = text.count(b"\r\n")
        is_plain = (
            text[:1].isupper()  # no empty lines in front
            and text.count(b"\n") == lines
            and fields_count == lines - 2  # no folded ones
            and not any(name in head.headers for name in _NOT_KNOWN)
        )
        if is_plain and head.length < READ_BYTES:
            if len(self.by_text) >= HEADS_KNOWN_MAX:
                self.by_text.clear()
            self.by_text[text] = head

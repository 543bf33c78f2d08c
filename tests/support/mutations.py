"""Bytes spoiled by chance: the one loop that all who test a parser of bytes share."""

from __future__ import annotations

import random
from collections.abc import Sequence


def mutated(
    chance: random.Random, text: bytes, pieces: Sequence[bytes], *, count: int, reach: int = 0
) -> bytes:
    """The bytes with `count` changes: a piece put in, some removed, one overwritten.

    `reach`: only among so many of the first ones; 0: anywhere.
    """
    out = bytearray(text)
    for _ in range(count):
        index = chance.randrange(min(len(out), reach or len(out)))
        kind = chance.random()
        if kind < 0.5:
            out[index:index] = chance.choice(pieces)
        elif kind < 0.8:
            del out[index : index + chance.randint(1, 8)]
        else:
            out[index] = chance.randrange(256)
    return bytes(out)

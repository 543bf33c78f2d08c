"""Content codings: round trips, bombs, and what is not one whole body."""

from __future__ import annotations

import gzip
import zlib

import pytest

from naiad.gateway.compression import (
    GIVEN_BYTES,
    PIECE_BYTES,
    Inflation,
    InflationFault,
    accepted_coding,
    deflated,
)

BODY = b"naiad " * 1000


def inflated(coding: str, body: bytes, limit_bytes: int) -> bytes:
    """All pieces."""
    return b"".join(iter(Inflation(coding, body, limit_bytes).piece, b""))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_round_trip(coding: str) -> None:
    packed = deflated(coding, [BODY[:100], memoryview(BODY)[100:]])
    assert len(packed) < len(BODY) / 10
    assert inflated(coding, packed, len(BODY)) == BODY


def test_bare_deflate_is_understood_too() -> None:
    bare = zlib.compressobj(1, zlib.DEFLATED, -15)
    assert inflated("deflate", bare.compress(BODY) + bare.flush(), len(BODY)) == BODY


def test_a_bomb_stops_at_the_limit() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(InflationFault, match="more than 1000 bytes when decompressed"):
        inflated("gzip", bomb, 1000)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 3 * PIECE_BYTES + 1])
@pytest.mark.parametrize("level", [0, 9])
def test_pieces_are_small_however_much_there_is(size: int, level: int) -> None:
    packed = gzip.compress(bytes(size), level)
    assert level or size < GIVEN_BYTES or len(packed) > GIVEN_BYTES
    inflation = Inflation("gzip", packed, size)
    pieces = [inflation.piece()]
    while not inflation.is_ended:
        pieces.append(inflation.piece())
    assert b"".join(pieces) == bytes(size)
    assert max(map(len, pieces)) <= PIECE_BYTES


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_broken_bodies(coding: str) -> None:
    packed = deflated(coding, [BODY])
    for wrong in (b"", b"x", packed[:-1], packed + b"more"):
        with pytest.raises(InflationFault):
            inflated(coding, wrong, len(BODY))


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("", ""),
        ("gzip", "gzip"),
        ("GZIP, deflate", "gzip"),
        ("gzip;q=0.2, deflate;q=0.8", "deflate"),
        ("gzip;q=0", ""),
        ("gzip;q=x", ""),
        ("identity, gzip;q=0.5", ""),
        ("br, *", ""),
        ("gzip;q=nan", ""),
    ],
)
def test_accepted_coding(header: str, coding: str) -> None:
    assert accepted_coding(header) == coding

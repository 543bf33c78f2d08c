"""Header blocks against an independent implementation, and what must be refused."""

from __future__ import annotations

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from naiad.gateway.http2 import hpack as ours
from naiad.gateway.http2 import huffman
from naiad.gateway.http2.hpack import Decoder, HeaderFault, HeadersTooLarge, encoded

Fields = list[tuple[bytes, bytes]]

NAMES = st.sampled_from([b":path", b"content-type", b"grpc-timeout", b"a"]) | st.binary(max_size=20)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=60)), max_size=12)


def decoder(bytes_max: int = 1 << 16) -> Decoder[Fields]:
    return Decoder(lambda fields: fields, bytes_max)


@given(st.binary(max_size=100))
def test_huffman_texts(text: bytes) -> None:
    encoder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)

    assert huffman.decoded(encoder.encode(text)) == text


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00", b"\x1f\xff"])
def test_huffman_texts_that_are_none(data: bytes) -> None:
    """The end code, padding that is not of ones, and more than seven bits of it."""
    with pytest.raises(ValueError, match="Huffman"):
        huffman.decoded(data)


def test_the_static_table() -> None:
    assert ours._STATIC[1:] == tuple(HeaderTable.STATIC_TABLE)


@given(st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 60, 4096])), max_size=8))
def test_blocks_of_one_connection(blocks: list[tuple[Fields, bool, int | None]]) -> None:
    """Each twice: what is looked up is what is decoded."""
    encoder = hpack.Encoder()
    one = decoder()
    for fields, is_huffman, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        for _ in range(2):
            assert one.decode(encoder.encode(fields, huffman=is_huffman)) == fields


@given(FIELDS)
def test_what_is_encoded_here_is_understood_there(fields: Fields) -> None:
    found = hpack.Decoder().decode(encoded([(b":status", b"200"), *fields]), raw=True)

    assert [(bytes(name), bytes(value)) for name, value in found] == [(b":status", b"200"), *fields]


@given(st.binary(max_size=80))
def test_any_bytes_are_decoded_as_elsewhere_or_refused(block: bytes) -> None:
    try:
        found = decoder().decode(block)
    except (HeaderFault, HeadersTooLarge):
        return
    other = hpack.Decoder()
    other.max_allowed_table_size = 4096
    there = other.decode(block, raw=True)
    assert [(bytes(name), bytes(value)) for name, value in there] == found


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xc0",  # an entry that the table does not have
        b"\x00\x05ab",  # a text that is cut off
        b"\xff\xff\xff\xff\xff\xff\xff",  # a number without an end
        b"\x3f\xff\xff\x01",  # a table larger than allowed
        b"\x82\x20",  # a table size behind a field
    ],
)
def test_blocks_that_are_none(block: bytes) -> None:
    with pytest.raises(HeaderFault):
        decoder().decode(block)


def test_a_block_that_grows_beyond_the_limits() -> None:
    one = decoder(bytes_max=10_000)
    large = b"\x40\x01a" + b"\x7f\xa1\x0f" + b"x" * 2080
    one.decode(large)

    with pytest.raises(HeadersTooLarge):
        one.decode(b"\xbe" * 100)  # each of them two kilobytes
    assert one.decode(b"\xbe") == [(b"a", b"x" * 2080)]


def test_more_fields_than_are_taken() -> None:
    with pytest.raises(HeadersTooLarge):
        decoder().decode(b"\x82" * (ours.FIELDS_MAX + 1))

"""Headers that become parameters of a request."""

from __future__ import annotations

import re

import pytest

from naiad.gateway.http_infer import forwarded
from naiad.gateway.http_known_heads import KnownHeads
from naiad.gateway.http_message import Head, HttpRequest
from naiad.gateway.http_reader import Reader
from naiad.gateway.limits import READ_BYTES, Limits


def head_of(*fields: bytes) -> Head:
    """Of a request with these headers, as it is read."""
    requests: list[HttpRequest] = []
    reader = Reader(
        Limits(),
        bytearray(READ_BYTES),
        KnownHeads(),
        take=lambda size: None,
        place=lambda head: None,
        arrived=lambda request, held: requests.append(request),
    )
    text = b"\r\n".join((b"POST / HTTP/1.1", b"Host: h", *fields, b"", b""))
    for _ in range(2):  # the second one's head is known
        reader.buffer()[: len(text)] = text
        reader.feed(len(text))
    first, second = requests
    assert first.head is second.head
    return second.head


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([b"X-Request-Id: Ab"], {"X-Request-Id": "Ab"}),
        ([b"x-request-id: Ab", b"Y-Other: no"], {"x-request-id": "Ab"}),
        ([b"X-A: 1", b"X-B: 2", b"X-A: 3"], {"X-A": "1, 3", "X-B": "2"}),
        ([b"X-Two: a", b"x-TWO: b"], {"X-Two": "a, b"}),
        ([b"X-Empty:"], {"X-Empty": ""}),
        (["X-Tea: Grüner".encode()], {"X-Tea": "Grüner"}),
        (["X-Tea: Grüner".encode("latin-1")], {"X-Tea": "Grüner"}),
        ([b"A: b"], {}),
    ],
)
def test_they_keep_their_names(fields: list[bytes], expected: dict[str, str]) -> None:
    assert forwarded(head_of(*fields), re.compile("^x-", re.IGNORECASE)) == expected


def test_the_pattern_sees_names_as_they_were_sent() -> None:
    pattern = re.compile("^(?-i:X-A)$", re.IGNORECASE)
    assert forwarded(head_of(b"X-A: 1"), pattern) == {"X-A": "1"}
    assert forwarded(head_of(b"x-a: 1"), pattern) == {}

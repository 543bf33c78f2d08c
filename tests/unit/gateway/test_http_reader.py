"""Bytes to requests: every framing, however the bytes are cut, and every limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.gateway.http_known_heads import KnownHeads
from naiad.gateway.http_message import HttpRequest
from naiad.gateway.http_reader import (
    DIRECT_BYTES_MIN,
    PIECES_PER_TURN_MAX,
    SLICE_BYTES,
    Reader,
    Stage,
    path_of,
)
from naiad.gateway.http_status import HttpError
from naiad.gateway.limits import READ_BYTES, Limits
from naiad.gateway.memory import MAPPED_BYTES_MIN, memory_for
from naiad.protocol.errors import Code, Unavailable

SHARED = bytearray(READ_BYTES)


class Reading:
    """A reader, what came out of it, and the bytes that it counted."""

    def __init__(self, **limits: int) -> None:
        self.requests: list[HttpRequest] = []
        self.taken = 0
        self.turns = 0
        """In which something was left of what was read."""
        self.budget = 1 << 40
        self.known = KnownHeads()
        self.reader = Reader(
            replace(Limits(), **limits),
            SHARED,
            self.known,
            take=self._take,
            place=lambda head: None,
            arrived=self._arrived,
        )

    def _take(self, size: int) -> None:
        if self.taken + size > self.budget:
            raise Unavailable("full", code=Code.BUDGET_EXCEEDED)
        self.taken += size

    def _arrived(self, request: HttpRequest, held: int) -> None:
        assert held == len(request.body)
        self.requests.append(request)

    def feed(self, text: bytes, step: int = READ_BYTES) -> None:
        while text:
            target = self.reader.buffer()
            piece = text[: min(step, len(target))]
            target[: len(piece)] = piece
            self.reader.feed(len(piece))
            while self.reader.rest:
                self.turns += 1
                self.reader.go_on()
            text = text[len(piece) :]


@contextmanager
def refused(status: int, text: str = "") -> Iterator[None]:
    with pytest.raises(HttpError) as raised:
        yield
    assert raised.value.status == status
    assert text in raised.value.message


def post(body: bytes, headers: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST /x?q HTTP/1.1\r\nHost: h\r\n" + length + headers + b"\r\n" + body


@given(st.integers(1, 200))
def test_requests_come_out_whole_however_they_are_cut(step: int) -> None:
    reading = Reading()
    chunked = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"3\r\nabc\r\n2\r\nde\r\n0\r\n"
    wire = post(b"hello", b"X-A: 1\r\nx-a: 2\r\n") + chunked + b"T: trailer\r\n\r\n"
    reading.feed(wire + b"GET / HTTP/1.0\r\n\r\n", step)
    first, second, third = reading.requests
    assert (first.head.method, first.head.path, bytes(first.body)) == ("POST", b"/x", b"hello")
    assert first.head.header(b"x-a") == "1, 2"
    assert first.head.keeps_alive
    assert (second.head.path, bytes(second.body)) == (b"/c", b"abcde")
    assert b"t" not in second.head.headers
    assert (third.head.path, third.body, third.head.keeps_alive) == (b"/", b"", False)
    assert reading.taken == 10


@pytest.mark.parametrize("size", [DIRECT_BYTES_MIN - 1, DIRECT_BYTES_MIN, 3 * READ_BYTES + 1])
@pytest.mark.parametrize("step", [1000, READ_BYTES])
def test_large_bodies_and_what_follows_them(size: int, step: int) -> None:
    reading = Reading()
    body = bytes(range(256)) * (size // 256 + 1)
    reading.feed(post(body[:size]), step)
    reading.feed(post(b"next"), step)
    assert bytes(reading.requests[0].body) == body[:size]
    assert bytes(reading.requests[1].body) == b"next"


def test_a_large_body_is_read_past_the_parser() -> None:
    reading = Reading()
    reading.feed(post(bytes(DIRECT_BYTES_MIN))[:-10])
    assert reading.reader.stage is Stage.DIRECT
    assert len(reading.reader.buffer()) == 10
    assert reading.reader.drop() == DIRECT_BYTES_MIN - 10


def test_limits_of_the_header() -> None:
    with refused(431, "at most 100 bytes"):
        Reading(header_bytes_max=100).feed(b"GET /" + b"a" * 200)
    with refused(431):
        Reading(header_bytes_max=100).feed(
            b"GET / HTTP/1.1\r\nHost: h\r\na: " + b"a" * 100 + b"\r\n\r\n"
        )
    with refused(431, "3 fields"):
        Reading(header_count_max=3).feed(
            b"GET / HTTP/1.1\r\nHost: h\r\na:1\r\nb:1\r\nc:1\r\nd:1\r\n\r\n"
        )
    endless = Reading(header_bytes_max=100)
    with refused(431):
        for _ in range(1000):
            endless.feed(
                b"a" if endless.reader.stage is Stage.HEAD else b"GET / HTTP/1.1\r\nHost: h\r\n" * 1
            )
            endless.feed(b"b" * 500)


def test_limits_of_the_body() -> None:
    with refused(413, "at most 9 bytes"):
        Reading(body_bytes_max=9).feed(post(bytes(10)))
    chunked = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    with refused(413):
        Reading(body_bytes_max=9).feed(chunked + b"a\r\n0123456789\r\n")
    with refused(400, "more than 5 pieces"):
        Reading(pieces_max=5).feed(chunked + b"1\r\na\r\n" * 6)
    full = Reading()
    full.budget = 9
    with pytest.raises(Unavailable):
        full.feed(post(bytes(10)))


def test_limits_are_told_whatever_exception_is_being_handled() -> None:
    chunked = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    full = Reading()
    full.budget = 9
    try:
        raise ImportError("no such module")
    except ImportError:  # an event loop that is run in here runs with it as its context
        with refused(431):
            Reading(header_bytes_max=100).feed(b"GET /" + b"a" * 200)
        with refused(413):
            Reading(body_bytes_max=9).feed(post(bytes(10)))
        with refused(400, "more than 5 pieces"):
            Reading(pieces_max=5).feed(chunked + b"1\r\na\r\n" * 6)
        with refused(417):
            Reading().feed(post(b"", b"Expect: wonders\r\n"))
        with pytest.raises(Unavailable):
            full.feed(post(bytes(10)))


@pytest.mark.parametrize(
    "wire",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/3.7\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA B: 1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_what_is_not_http(wire: bytes) -> None:
    with refused(400, "not HTTP"):
        Reading().feed(wire)


POST = b"POST / HTTP/1.1\r\nHost: h\r\n"


@pytest.mark.parametrize(
    ("status", "head", "rest"),
    [
        (505, b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", b""),
        (505, b"GET / HTTP/0.9\r\n\r\n", b""),
        (505, b"GET /\r\n\r\n", b""),
        (400, b"GET / HTTP/1.1\r\n\r\n", b""),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", b""),
        (400, b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", b""),
        (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"),
        (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", b"0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n", b"0\r\n\r\n"),
        (501, POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n"),
        (501, POST + b"Transfer-Encoding: identity\r\n\r\n", b""),
        (501, POST + b"Transfer-Encoding: xchunked\r\n\r\n", b"0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", b"0\r\n\r\n"),
        (400, POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"),
        (400, POST + b"Content-Length: 3\r\nTransfer-Encoding: gzip\r\n\r\n", b"abc"),
        (400, POST + b"Transfer-Encoding : chunked\r\n\r\n", b"0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n", b"0\r\n\r\n"),
        (400, POST + b"Content-Length: 3, 3\r\n\r\n", b"abc"),
        (400, POST + b"Content-Length: +3\r\n\r\n", b"abc"),
        (400, b"GET / HTTP/1.1\nHost: h\n\n", b""),
    ],
)  # fmt: skip
def test_what_a_proxy_may_read_otherwise(status: int, head: bytes, rest: bytes) -> None:
    """Two that see different ends of a request let one client answer for another."""
    reading = Reading()
    with refused(status):
        reading.feed(head + rest + POST + b"\r\n")
    assert not reading.requests
    assert not reading.known.by_text


def test_expect() -> None:
    reading = Reading()
    reading.feed(post(b"12345", b"Expect: 100-continue\r\n")[:-5])
    assert reading.reader.expects_continue
    reading.feed(b"12345")
    assert not reading.reader.expects_continue
    with refused(417):
        Reading().feed(post(b"", b"Expect: more\r\n"))


UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "websocket": b"Upgrade: websocket\r\nConnection: keep-alive, upgrade\r\n",
    "close": b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n",
}
FRAMED = {
    "no body": b"\r\n",
    "empty": b"Content-Length: 0\r\n\r\n",
    "small": b"Content-Length: 5\r\n\r\nhello",
    "large": b"Content-Length: %d\r\n\r\n" % (3 * READ_BYTES) + b"large!" * (READ_BYTES // 2),
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\nT: x\r\n\r\n",
}


def told(reading: Reading) -> list[object]:
    return [
        (one.head.method, one.head.path, one.head.keeps_alive, bytes(one.body))
        for one in reading.requests
    ]


@pytest.mark.parametrize("step", [1, 7, SLICE_BYTES, READ_BYTES])
@pytest.mark.parametrize("framed", FRAMED)
@pytest.mark.parametrize("offered", UPGRADES)
def test_an_offered_upgrade_is_ignored(offered: str, framed: str, step: int) -> None:
    if framed == "large" and step < SLICE_BYTES:
        step *= 5000
    begin = b"POST /x?q HTTP/1.1\r\nHost: h\r\n"
    close = b"Connection: close\r\n" if offered == "close" else b""
    plain, upgraded = Reading(), Reading()
    plain.feed(begin + close + FRAMED[framed], step)
    upgraded.feed(begin + UPGRADES[offered] + FRAMED[framed], step)
    assert told(upgraded) == told(plain)
    (request,) = upgraded.requests
    assert request.head.headers[b"upgrade"] == UPGRADES[offered].split(b"Upgrade: ")[1].split()[0]
    assert b"t" not in request.head.headers
    assert upgraded.reader.stage is Stage.IDLE
    assert upgraded.taken == plain.taken


@pytest.mark.parametrize("step", [1, 11, READ_BYTES])
def test_requests_behind_an_ignored_upgrade_are_read(step: int) -> None:
    begin = b"POST /x?q HTTP/1.1\r\nHost: h\r\n"
    framed = [FRAMED[one] for one in ("small", "no body", "chunked", "empty", "small")]
    plain, upgraded = Reading(), Reading()
    plain.feed(b"".join(begin + one for one in framed) + post(b"next"), step)
    offers = b"".join(begin + UPGRADES["h2c"] + one for one in framed)
    upgraded.feed(offers + post(b"next"), step)
    assert told(upgraded) == told(plain)
    assert len(upgraded.requests) == 6


def test_a_head_that_offers_an_upgrade_is_learned() -> None:
    reading = Reading()
    request = post(b"hello", UPGRADES["h2c"])
    reading.feed(request)
    reading.feed(request * 2 + post(b"next"))
    first, second, third, last = reading.requests
    assert first.head is second.head is third.head
    assert [bytes(one.body) for one in (second, third, last)] == [b"hello", b"hello", b"next"]


def test_an_ignored_upgrade_changes_no_limit() -> None:
    upgrade = UPGRADES["h2c"]
    begin = b"POST /x HTTP/1.1\r\nHost: h\r\n" + upgrade
    waits = Reading()
    waits.feed(begin + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert waits.reader.expects_continue
    assert not waits.requests
    waits.feed(b"hi")
    assert not waits.reader.expects_continue
    assert bytes(waits.requests[0].body) == b"hi"
    coding = b"Transfer-Encoding: chunked\r\n"
    with refused(400):
        Reading().feed(begin + coding + b"Content-Length: 2\r\n\r\n0\r\n\r\n")
    with refused(501, "only chunked"):
        Reading().feed(begin + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
    with refused(413):
        Reading(body_bytes_max=9).feed(begin + coding + b"\r\na\r\n0123456789\r\n")
    with refused(400, "more than 5 pieces"):
        Reading(pieces_max=5).feed(begin + coding + b"\r\n" + b"1\r\na\r\n" * 6)
    fields = begin.count(b"\r\n") - 1
    Reading(header_count_max=fields).feed(begin + b"\r\n")
    with refused(431):
        Reading(header_count_max=fields - 1).feed(begin + b"\r\n")
    with refused(400, "not HTTP"):
        Reading().feed(begin + coding + b"\r\nno size\r\n")


def test_connect_is_refused() -> None:
    reading = Reading()
    with refused(405, "proxy"):
        reading.feed(post(b"first") + b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\nabc")
    assert len(reading.requests) == 1


def test_targets() -> None:
    assert path_of(b"/v2?x#y") == b"/v2"
    assert path_of(b"http://host:1/v2?x") == b"/v2"
    assert path_of(b"*") == b"*"
    assert not path_of(b"host:443").startswith(b"/")


def test_known_heads_give_what_the_parser_gives() -> None:
    known = Reading()
    wire = post(b"hello") * 3 + b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n" + post(b"hello")
    known.feed(post(b"hello"))
    known.feed(wire)
    known.feed(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n" + post(b"large" * 50_000)[:-3])
    parsed = Reading()
    for byte in post(b"hello") + wire:
        parsed.feed(bytes([byte]))
    assert len(known.known.by_text) == 2  # the last is too large
    assert parsed.known.by_text == {}
    for one, other in zip(known.requests, parsed.requests, strict=False):
        assert one.body == other.body
        for name in ("method", "path", "headers", "keeps_alive", "length"):
            assert getattr(one.head, name) == getattr(other.head, name)
    assert known.requests[0].head is known.requests[1].head
    assert known.reader.stage is Stage.DIRECT


def test_a_known_head_whose_body_comes_later() -> None:
    reading = Reading()
    text = post(b"hello")
    for cut in range(1, len(text)):
        reading.feed(text)
        reading.feed(text[:cut])
        reading.feed(text[cut:] + text)
    assert {bytes(one.body) for one in reading.requests} == {b"hello"}
    assert len(reading.requests) == 3 * (len(text) - 1)


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nExpect: 100-continue\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nA: " + b"a" * 3000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % READ_BYTES,
    ],
)
def test_heads_that_are_never_learned(head: bytes) -> None:
    reading = Reading()
    reading.feed(head)
    assert reading.known.by_text == {}


def test_known_heads_are_bounded() -> None:
    reading = Reading()
    for number in range(3000):
        reading.feed(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number)
    assert len(reading.known.by_text) <= 1024


def test_known_heads_keep_to_the_budget() -> None:
    reading = Reading()
    reading.feed(post(b"hello"))
    reading.budget = 9
    with pytest.raises(Unavailable):
        reading.feed(post(b"hello"))


CHUNKED = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_tiny_chunks_are_taken_in_turns() -> None:
    reading = Reading()
    count = 20_000
    wire = CHUNKED + b"1\r\nx\r\n" * count + b"0\r\n\r\n" + post(b"next")
    reading.feed(wire)
    first, second = reading.requests
    assert (bytes(first.body), bytes(second.body)) == (b"x" * count, b"next")
    chunks_max = PIECES_PER_TURN_MAX + SLICE_BYTES // 6 + 1
    assert count // chunks_max <= reading.turns <= count // PIECES_PER_TURN_MAX


def test_larger_chunks_are_taken_at_once() -> None:
    reading = Reading()
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    reading.feed(CHUNKED + chunk * 500 + b"0\r\n\r\n")
    assert len(reading.requests[0].body) == 500 * 1024
    assert reading.turns == 0


def test_what_is_left_for_another_turn_is_forgotten_with_the_body() -> None:
    reading = Reading()
    reader = reading.reader
    wire = CHUNKED + b"1\r\nx\r\n" * 2000
    reader.buffer()[: len(wire)] = wire
    reader.feed(len(wire))
    assert reader.rest
    assert reader.drop() == reading.taken
    assert not reader.rest


def test_trailers_count_as_header_fields() -> None:
    reading = Reading(header_count_max=10)
    with refused(431, "at most 65536 bytes and 10 fields"):
        reading.feed(CHUNKED + b"0\r\n" + b"a:b\r\n" * 10 + b"\r\n")


@pytest.mark.parametrize("size", [MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN])
def test_a_body_that_has_not_come_takes_no_memory(size: int) -> None:
    """A thousand clients may say that they send much, and send nothing."""
    process = psutil.Process()
    before = process.memory_info().rss
    bodies = [memory_for(size) for _ in range(100)]
    assert process.memory_info().rss - before < len(bodies) * size / 4

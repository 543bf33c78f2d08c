"""Mutated bytes: nothing but our own errors comes out, and a known head never changes a meaning.

A failing seed is in the test's name; more of them: raise SEEDS.
"""

from __future__ import annotations

import json
import random
import re
from collections import deque

import pytest

from naiad.client.packing import Request, infer_message
from naiad.client.requests import PackedInput
from naiad.gateway.client_form import prepared
from naiad.gateway.http_known_heads import KnownHeads
from naiad.gateway.http_message import HttpRequest
from naiad.gateway.http_reader import Reader
from naiad.gateway.http_request import infer_call, uses_regions
from naiad.gateway.http_status import HttpError
from naiad.gateway.http_template import split_label
from naiad.gateway.json_tensors import from_json
from naiad.gateway.limits import READ_BYTES, Limits
from naiad.protocol.codec import decode
from naiad.protocol.errors import NaiadError
from naiad.protocol.messages import CLIENT_HEADER_BYTES_MAX, INLINE_BYTES_MAX
from support.mutations import mutated

SEEDS = range(4)
PER_SEED = 500

BODY = json.dumps(
    {
        "id": "7",
        "inputs": [
            {"name": "A", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}},
            {"name": "B", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]},
        ],
        "outputs": [{"name": "O", "parameters": {"binary_data": True, "classification": 1}}],
        "parameters": {"priority": 1, "sequence_id": 3, "x": 1.5},
    }
).encode()
BODY_PIECES = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"1e999", b"-1", b"NaN", b"true"),
    *(b"9" * 30, b'""', b"\\ud800", b"\xff", b'"shared_memory_region":"r"', b'"data":[1]'),
]
WIRE = (
    b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello"
    b"POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    b"GET /c HTTP/1.1\r\nHost: h\r\n\r\n"
)
WIRE_PIECES = [
    *(b"\r\n", b"\n", b"\r", b" ", b"\0", b":", b"0", b"\r\n\r\n", b"CONNECT "),
    *(b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"Expect: 100-continue\r\n"),
    *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_bodies(seed: int) -> None:
    chance = random.Random(seed)
    understood = 0
    for _ in range(PER_SEED):
        text = mutated(chance, BODY, BODY_PIECES, count=chance.randint(0, 4))
        split_label(text)
        try:
            call = infer_call("m", 1, text + b"x", len(text), from_json, 1 << 20)
        except NaiadError:
            continue
        uses_regions(call)
        understood += 1
    assert 0 < understood < PER_SEED


HOSTILE = [
    *(
        b'"' + b"n" * 1100 + b'"',
        b'"\\ud83d\\ude00"',
        b'"\\ud83d"',
        b"18446744073709551616",
        b"NaN",
    ),
    *(b'{"name":"O","parameters":{"binary_data":true}},' * 5000, b"[" + b"1," * 40 + b"1]"),
    *(
        b'"' + b"v" * 33_000 + b'"',
        b"9223372036854775808",
        b"".join(b'"k%d":1,' % number for number in range(260)),
        b'"\\u0000"',
    ),
]


class NoMemory:
    """A client library without shared memory."""

    def share(self, inputs: tuple[PackedInput, ...]) -> tuple[tuple[PackedInput, ...], None]:
        return inputs, None


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_accepted_a_broker_can_read(seed: int) -> None:
    """One request that spoils its message would break the session of everybody."""
    chance = random.Random(seed)
    values = re.compile(rb'"[^"]*"|\d+|true')
    accepted = 0
    for _ in range(PER_SEED):
        text = BODY
        for _ in range(chance.randint(1, 2)):
            place = chance.choice(list(values.finditer(text)))
            text = text[: place.start()] + chance.choice(HOSTILE) + text[place.end() :]
        try:
            call = infer_call("m", 1, text + b"x", len(text), from_json, 1 << 20)
            parts = prepared(NoMemory(), call, {"r": 2**62})  # type: ignore[arg-type]
        except NaiadError:
            continue
        message = infer_message(deque([Request(1, parts, object())]), INLINE_BYTES_MAX)
        assert message is not None
        header, *frames = message
        assert len(header) <= CLIENT_HEADER_BYTES_MAX
        decode(bytes(header), [len(frame) for frame in frames])
        accepted += 1
    assert accepted


def read(known: KnownHeads, pieces: list[bytes]) -> tuple[list[tuple[object, ...]], object]:
    found: list[tuple[object, ...]] = []

    def arrived(request: HttpRequest, held: int) -> None:
        head = request.head
        found.append(
            (head.method, head.path, head.headers, head.names, head.keeps_alive, request.body)
        )

    reader = Reader(
        Limits(),
        bytearray(READ_BYTES),
        known,
        take=lambda size: None,
        place=lambda head: None,
        arrived=arrived,
    )
    try:
        for piece in pieces:
            reader.buffer()[: len(piece)] = piece
            reader.feed(len(piece))
    except HttpError as fault:
        return found, fault.status
    return found, None


@pytest.mark.parametrize("seed", SEEDS)
def test_known_heads_read_as_the_parser_does(seed: int) -> None:
    chance = random.Random(seed)
    known = KnownHeads()
    for _ in range(PER_SEED):
        wire = mutated(chance, WIRE, WIRE_PIECES, count=chance.randint(0, 4))
        middle = chance.randrange(1, len(wire))
        assert read(known, [wire]) == read(KnownHeads(), [wire[:middle], wire[middle:]])
    assert known.by_text

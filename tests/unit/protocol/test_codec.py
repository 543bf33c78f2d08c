"""Every message survives the wire, and no bytes whatever do anything but raise ProtocolError."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.protocol import messages as m
from naiad.protocol.checks import ARRAY_ITEMS_MAX
from naiad.protocol.codec import decode, encode, peek_version
from naiad.protocol.errors import Code, ProtocolError

SECRET = bytes(range(16))
REGION = m.Region(7, "/naiad.s.client.1.ab", 21, 99, 4096)
TENSOR = m.Tensor("INPUT0", "FP32", (1, 16), m.Place.INLINE, 0, 0, 64)
REGIONAL = m.Tensor("INPUT1", "BYTES", (), m.Place.REGION, 3, 128, 2**40)
REQUEST = m.InferRequest(
    5, 2, "identity", -1, "mine", (TENSOR, REGIONAL), (m.OutputRequest("OUTPUT0"),),
    3, 10_000, m.Sequence("s", True, False), "account", "tenant", "00-ab-cd-01", {"k": True},
)  # fmt: skip
ERROR = ("model_error", "ValueError: no (model.py:3)", False)

MESSAGES: list[m.Message] = [
    m.Hello(SECRET, "client", "0.1.0", 12, 0, ((1, 2),)),
    m.Infer((REQUEST, REQUEST._replace(id=6, sequence=m.Sequence(2**64 - 1, False, True)))),
    m.Infer(()),
    m.Cancel((1, 2, 3)),
    m.Release(((1, 2),)),
    m.RegisterRegion(1, REGION, "0a1b"),
    m.ForgetRegion(2, 7),
    m.Control(3, "load", {"model": "x", "n": 1, "f": 0.5, "b": False}),
    m.Bye(),
    m.Welcome(2**63, "naiad", "0.1.0", 10, 20, 30, True),
    m.Answers(1, (m.InferAnswer(5, None, 1, (TENSOR,), 0, True, {}),), (REGION,)),
    m.Answers(1, (m.InferAnswer(5, ERROR, -1, ()),), ()),
    m.Released(1, (5,)),
    m.Reply(3, None),
    m.Reply(3, ERROR),
    m.Refused("version_mismatch", "peer speaks 2"),
    m.SlotHello(
        SECRET, "cpu-0", "cpu", 9, "0.1.0", ("identity",), 1, 4, "identity", 1,
        (m.HeldBatch(8, ((1, 2), (3, 4)), True),), (REGION,), ((1, 2),),
    ),
    m.Loaded(4, None, 10**9),
    m.Loaded(4, ERROR, 0),
    m.Results(8, (m.BatchResult(None, (TENSOR,)), m.BatchResult(ERROR, ())),
              m.Durations(1, 2, 3), 1, (REGION,)),
    m.Forgotten((7,)),
    m.GivenBack((7, 8)),
    m.Bundle((0, 2, 1)),
    m.SlotWelcome(1, "naiad", True),
    m.Load(4, "identity", 1, "identity_0", "/models/identity", "KIND_CPU", 0, 2, True),
    m.Batch(8, 7, (m.BatchRequest(1, 5, "mine", (TENSOR,), (), 10, 1, None, "", {}),), (REGION,)),
    m.Forget((7,)),
    m.Abandon(((1, 5),)),
    m.Return(((1, 5),)),
    m.Stop(30_000),
    m.LogLevels(True, True, False, 2, "ISO8601"),
    m.SupervisorHello(SECRET, 1, 0, (("cpu-0", 9),)),
    m.Spawned("cpu-0", 9),
    m.Exited("cpu-0", 9, -11),
    m.Want("cpu", 3, ("identity",)),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_message_survives_the_wire(message: m.Message) -> None:
    assert decode(encode(message), [64]) == message
    assert type(decode(encode(message), [64])) is type(message)


def test_a_client_that_tells_no_gpu_is_understood() -> None:
    parts = msgpack.unpackb(encode(m.RegisterRegion(1, REGION, "")), use_list=False)
    assert decode(msgpack.packb(parts[:-1])) == m.RegisterRegion(1, REGION)
    for wrong in (parts[:-2], (*parts, "")):
        with pytest.raises(ProtocolError, match="REGION: expected"):
            decode(msgpack.packb(wrong))


def test_every_kind_has_a_sample() -> None:
    assert {type(one) for one in MESSAGES} == set(m.KIND_OF)


def test_every_kind_has_its_own_number() -> None:
    assert sorted(m.KIND_OF.values()) == sorted(m.Kind)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_wrong_field_is_a_protocol_error(message: m.Message) -> None:
    """Each field in turn is replaced by values that no field accepts."""
    parts = list(msgpack.unpackb(encode(message), use_list=False))
    for index in range(2, len(parts)):
        wrongs: list[Any] = [{1: 2}, -(2**63), [[]], b"x" * 5, [None]]
        for wrong in wrongs:
            broken = [*parts]
            broken[index] = wrong
            with pytest.raises(ProtocolError):
                decode(msgpack.packb(broken), [64])
    has_later = isinstance(message, m.RegisterRegion)  # the last field may be missing
    for count in (parts[: -1 - has_later], [*parts, 0]):
        with pytest.raises(ProtocolError):
            decode(msgpack.packb(count), [64])


def request_with(**changes: Any) -> bytes:
    return encode(m.Infer((REQUEST._replace(**changes),)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": (TENSOR._replace(region=1),)}, "payload frame 1"),
        ({"inputs": (TENSOR._replace(offset=1),)}, "do not exist"),
        ({"inputs": (TENSOR._replace(size=2**63 - 1),)}, "do not exist"),
        ({"inputs": (TENSOR._replace(place=m.Place.LEASE),)}, "a place of"),
        ({"inputs": (TENSOR._replace(shape=(True,)),)}, "dimensions"),
        ({"inputs": (TENSOR._replace(shape=(1,) * 33),)}, "shape"),
        ({"inputs": (TENSOR._replace(offset=-1),)}, "unsigned"),
        ({"outputs": (m.OutputRequest("x", m.Place.LEASE),)}, "a place of"),
        ({"id": True}, "request id"),
        ({"attempt": 0}, "attempt"),
        ({"timeout_us": -1}, "timeout_us"),
        ({"model": "m" * 2000}, "model"),
        ({"parameters": {"a": [1]}}, "parameter 'a'"),
        ({"parameters": {"a": None}}, "parameter 'a'"),
        ({"sequence": (-1, True, False)}, "unsigned"),
    ],
)
def test_a_wrong_request_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode(request_with(**changes), [64])


def test_dimensions_may_be_negative_here_so_that_admission_can_name_them() -> None:
    header = request_with(inputs=(TENSOR._replace(shape=(-1, 16)),))
    message = decode(header, [64])
    assert isinstance(message, m.Infer)
    assert message.requests[0].inputs[0].shape == (-1, 16)


def test_the_size_is_checked_before_anything_is_unpacked() -> None:
    bomb = b"\xdd\x00\x10\x00\x00" + b"\x80" * 2**20  # an array of a million empty maps
    with pytest.raises(ProtocolError, match="expected at most 65536"):
        decode(bomb, [], m.CLIENT_HEADER_BYTES_MAX)
    with pytest.raises(ProtocolError):
        decode(bomb[: 60 * 1024], [], m.CLIENT_HEADER_BYTES_MAX)


@pytest.mark.parametrize(
    "value",
    [
        msgpack.ExtType(1, b"x"),
        [m.WIRE_VERSION, m.Kind.CANCEL, list(range(ARRAY_ITEMS_MAX + 1))],
        {"version": 1},
        [m.WIRE_VERSION],
        [],
        None,
        [m.WIRE_VERSION, 999],
        [m.WIRE_VERSION, [1]],
        [m.WIRE_VERSION, "HELLO"],
        [m.WIRE_VERSION, True, SECRET],
    ],
)
def test_what_is_no_message_is_refused(value: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(msgpack.packb(value))


@pytest.mark.parametrize("version", [0, 2, 99, "1", None, True, 1.0])
def test_another_wire_version_is_named_beside_our_own(version: Any) -> None:
    with pytest.raises(ProtocolError, match="this side speaks 1") as caught:
        decode(msgpack.packb([version, m.Kind.BYE]))
    assert caught.value.code is Code.VERSION_MISMATCH


def test_the_version_of_a_message_of_any_version_can_be_read() -> None:
    assert peek_version(msgpack.packb([7, 1, b"x" * 200, {"new": "field"}])) == 7
    assert peek_version(encode(m.Bye())) == m.WIRE_VERSION
    assert peek_version(b"") is None
    assert peek_version(b"\xc1garbage") is None


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(b"\x91" * 5000 + b"\x01")


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_only_raise_protocol_error(data: bytes) -> None:
    try:
        decode(data, [64])
    except ProtocolError:
        return
    assert data[:1] in (b"\x93", b"\x94", b"\x92", b"\x95", b"\x9c")  # a lucky real message


def test_mutations_of_real_messages_only_raise_protocol_error() -> None:
    """Bit flips, cuts, insertions and doublings of every message, seeded."""
    chance = random.Random(7)
    refused = 0
    for _ in range(6000):
        data = bytearray(encode(chance.choice(MESSAGES)))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data) + 1) if data else 0
            match chance.randrange(4):
                case 0 if at < len(data):
                    data[at] ^= 1 << chance.randrange(8)
                case 1:
                    del data[at : at + chance.randint(1, 9)]
                case 2:
                    data[at:at] = chance.randbytes(chance.randint(1, 9))
                case _:
                    data[at:at] = data[: chance.randint(1, 30)]
        try:
            decode(bytes(data), [64])
        except ProtocolError:
            refused += 1
    assert refused > 3000


@pytest.mark.parametrize("header", [b"\x91" * 5000, b"", b"\xc1", b"\x92\x01"])
def test_what_is_no_msgpack_is_refused_with_a_reason(header: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"header is not valid msgpack: \w"):
        decode(header)

"""A request that is read in steps is the same as one that is read at once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from naiad.gateway.calls import TENSORS_MAX, InferCall
from naiad.gateway.grpc_codec import large
from naiad.gateway.grpc_codec.large import (
    BESIDE_BYTES_MAX,
    FIELD_BYTES_MAX,
    INPUTS_PER_STEP,
    PART_BYTES,
    parts_in_steps,
    request_in_steps,
)
from naiad.gateway.grpc_codec.requests import decoded_request, place_of
from naiad.gateway.grpc_codec.wire import (
    FIELDS_MAX,
    LIGHT_BYTES,
    LIGHT_FIELDS_MAX,
    STRUCTURE_BYTES_MAX,
    is_light,
    next_field,
    request_id,
    varint,
)
from naiad.protocol import messages as m
from naiad.protocol.errors import RequestError
from support.steps import ended

Request = service_pb2.ModelInferRequest

CONTENTS = {
    "BOOL": ("bool_contents", st.booleans()),
    "INT8": ("int_contents", st.integers(-128, 127)),
    "INT32": ("int_contents", st.integers(-(2**31), 2**31 - 1)),
    "INT64": ("int64_contents", st.integers(-(2**63), 2**63 - 1)),
    "UINT8": ("uint_contents", st.integers(0, 255)),
    "UINT64": ("uint64_contents", st.integers(0, 2**64 - 1)),
    "FP32": ("fp32_contents", st.floats(width=32, allow_nan=False)),
    "FP64": ("fp64_contents", st.floats(allow_nan=False)),
    "BYTES": ("bytes_contents", st.binary(max_size=60)),
}


def stepped(data: bytes) -> InferCall:
    return ended(in_steps(data))[0]


def in_steps(data: bytes) -> Generator[None, None, InferCall]:
    parts = yield from parts_in_steps(data)
    return (yield from request_in_steps(parts))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    message = Request(model_name=draw(st.text(max_size=3)), id=draw(st.text(max_size=3)))
    is_raw = draw(st.booleans())
    for datatype in draw(st.lists(st.sampled_from(sorted(CONTENTS)), max_size=4)):
        shape = draw(st.lists(st.integers(0, 300), max_size=5))
        tensor = message.inputs.add(name=draw(st.text(max_size=9)), datatype=datatype, shape=shape)
        kind = draw(st.sampled_from(["contents", "region", "none"]))
        if kind == "region":
            tensor.parameters["shared_memory_region"].string_param = "r"
            tensor.parameters["shared_memory_byte_size"].int64_param = draw(st.integers(0, 9))
        elif kind == "contents" and not (is_raw and draw(st.booleans())):
            field, values = CONTENTS[draw(st.sampled_from([datatype, datatype, "INT8"]))]
            getattr(tensor.contents, field).extend(draw(st.lists(values, max_size=40)))
    if is_raw:
        message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=50), max_size=4)))
    for name in draw(st.lists(st.text(max_size=9), max_size=5)):
        message.outputs.add(name=name)
    for name in draw(st.lists(st.text(max_size=9), max_size=4)):
        message.parameters[name].string_param = draw(st.text(max_size=30))
    data = message.SerializeToString()
    # Of one input in two parts, and a field that nobody knows.
    more = Request()
    more.inputs.add(name="I", datatype="FP32").contents.fp32_contents.extend([1.0, 2.0])
    again = more.SerializeToString()[2:]
    joined = b"\x2a" + bytes([2 * len(again)]) + again + again
    whole: bytes = data + draw(st.sampled_from([b"", joined, b"\xfa\x07\x03abc", b"\xf8\x07\x05"]))
    return whole


@given(requests(), st.sampled_from([(16, 4), (40, 1), (40, 3), (100, 100)]))
def test_any_request(data: bytes, limits: tuple[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "PART_BYTES", limits[0])
        patch.setattr(large, "FIELDS_PER_STEP", limits[1])
        patch.setattr(large, "COPIED_BYTES", 7)
        expected = outcome(decoded_request, data)
        found = outcome(stepped, data)
    # Names, shapes and parameters of an input are one part.
    assert found == expected or "beside its contents" in str(found)


PIECES = st.sampled_from(
    [b"\x42" + varint(size) + b"\xff" * size for size in (0, 1, 9, 127, 128, 200)]
    + [b"\x42\x80\x00", b"\xc2\x00\x82\x80\x00xy", b"\xc2\x80\x80\x80\x80\x80\x00\x00"]
    + [b"\x10\x05", b"\x10" + b"\xff" * 9 + b"\x01", b"\x12\x02\x05\x06", b"\x90\x00\x07"]
    + [b"\x35abcd", b"\x39abcdefgh", b"\x32\x04abcd", b"\x32\x03abc"]
    + [b"\x48\x05", b"\xf8\x07\x05", b"\x02\x00", b"\x42\x05ab"]
)
"""Without groups, which only the message library reads."""


@given(
    st.sampled_from([b"BYTES", b"INT32", b"FP32", b"FP64"]),
    st.one_of(
        st.lists(PIECES, max_size=30),
        st.lists(PIECES.filter(lambda piece: piece[0] & 0x7F == 0x42), max_size=30),
        st.lists(PIECES.filter(lambda piece: piece[0] & 0x7F in (0x10, 0x12)), max_size=30),
    ),
    st.sampled_from([16, 40, 150]),
)
def test_any_contents(datatype: bytes, pieces: list[bytes], part_bytes: int) -> None:
    contents = b"".join(pieces)
    body = b"\x0a\x01x\x12" + bytes([len(datatype)]) + datatype + b"\x2a"
    body += varint(len(contents)) + contents
    data = b"\x0a\x01m\x2a" + varint(len(body)) + body
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "PART_BYTES", part_bytes)
        found = outcome(stepped, data)
    # Which of two faults is named depends on where the contents are cut.
    expected = outcome(decoded_request, data)
    assert found == expected or (isinstance(found, str) and isinstance(expected, str))


def outcome(read: Callable[[bytes], InferCall], data: bytes) -> InferCall | str:
    try:
        return read(data)
    except RequestError as fault:
        return fault.message


def typed(datatype: str, values: list[Any]) -> bytes:
    message = Request(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, CONTENTS[datatype][0]).extend(values)
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("BOOL", [True, False] * 20_000),
        ("INT8", [-128, 0, 127] * 10_000),
        ("INT64", [-1, 2**63 - 1, 0, 5] * 5_000),
        ("UINT64", [2**64 - 1, 0] * 10_000),
        ("FP32", [0.5, -1.0] * 100_000),
        ("FP64", [0.1, 1e300] * 10_000),
        ("BYTES", [b"", b"a", b"x" * 127, b"y" * 128] * 2_000),
        ("BYTES", [b"x" * 1_000_000, b"", b"y" * 9000, b"z"]),
    ],
)
def test_typed_contents_are_read_a_part_at_a_time(
    datatype: str, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = typed(datatype, values)
    expected = decoded_request(data)
    sizes: list[int] = []
    read = large._read

    def reading(message: bytes, *more: Any) -> bytes:
        sizes.append(len(message))
        return read(message, *more)

    monkeypatch.setattr(large, "_read", reading)
    found, steps = ended(in_steps(data))
    assert found == expected
    assert max(sizes) <= PART_BYTES + 12 + 130  # a tag, a size, the rest of an element
    assert steps > len(data) / max(large.COPIED_BYTES, 1)


@pytest.mark.parametrize(
    ("datatype", "contents"),
    [
        (b"BYTES", b"\x42\x00" * 100_000),
        (b"BYTES", b"\x42\x06abcdef" * 25_000),
        (b"BYTES", b"\x42\x81\x80\x00x" * 40_000),
        (b"INT32", b"\x10\x05" * 100_000),
        (b"FP32", b"\x35abcd" * 40_000),
        (b"FP64", b"\x39abcdefgh" * 20_000),
        (b"INT32", b"\xf8\x07\x05" * 60_000),
    ],
    ids=["empty", "short", "sized in three bytes", "INT32", "FP32", "FP64", "unknown"],
)
def test_short_fields_are_looked_at_together(
    datatype: bytes, contents: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other they take 2 us each, of which there are four million."""
    body = b"\x0a\x01x\x12" + bytes([len(datatype)]) + datatype + b"\x2a"
    body += varint(len(contents)) + contents
    data = b"\x0a\x01m\x2a" + varint(len(body)) + body
    expected = decoded_request(data)
    looked = [0]
    look, read = next_field, large._read

    def looking(*given: Any) -> Any:
        looked[-1] += 1
        return look(*given)

    def reading(*given: Any) -> bytes:
        looked.append(0)
        return read(*given)

    monkeypatch.setattr(large, "next_field", looking)
    monkeypatch.setattr(large, "_read", reading)
    found, steps = ended(in_steps(data))
    assert found == expected
    assert max(looked) <= 2
    assert steps > len(contents) / (PART_BYTES + 10)


def test_numbers_that_are_not_packed() -> None:
    contents = b"\x10\x05\x10\x06" * 10_000 + b"\x12\x02\x07\x08"
    body = b"\x0a\x01x\x12\x05INT32\x18\x02" + b"\x2a" + varint(len(contents)) + contents
    data = b"\x0a\x01m\x2a" + varint(len(body)) + body
    assert stepped(data) == decoded_request(data)
    assert len(stepped(data).inputs[0].data) == 4 * 20_002


@pytest.mark.parametrize(
    "contents",
    [
        b"\x12\x90\x4e" + b"\x80" * 10_000,
        b"\x12\x90\x4e" + b"\x01" * 9_999,
        b"\x10" + b"\xff" * 11 + b"\x01" * 10_000,
        b"\x13" * 10_000,
        b"\x42\x01x" * 5_000 + b"\x42\x02x",
        b"\x42\x01x" * 5_000 + b"\x42",
        b"\x32\x91\x4e" + b"\x01" * 10_001,
    ],
)
def test_contents_that_are_none_are_refused(contents: bytes) -> None:
    for datatype in (b"INT32", b"FP32\x1a\x00"):
        body = b"\x0a\x01x\x12\x05" + datatype + b"\x2a" + varint(len(contents)) + contents
        data = b"\x0a\x01m\x2a" + varint(len(body)) + body
        with pytest.raises(RequestError):
            decoded_request(data)
        with pytest.raises(RequestError):
            stepped(data)


MOST = f"at most {TENSORS_MAX}"


def with_(**fields: Any) -> Any:
    return Request(model_name="m", **fields)


def tensors(count: int) -> list[Any]:
    contents = service_pb2.InferTensorContents(fp32_contents=[1])
    one = Request.InferInputTensor(name="x", datatype="FP32", shape=[1], contents=contents)
    return [one] * count


def parameters(count: int, size: int = 1) -> dict[str, Any]:
    one = service_pb2.InferParameter(string_param="x" * size)
    return {f"{number}": one for number in range(count)}


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (
            with_(inputs=tensors(TENSORS_MAX + 1)),
            f"1025 inputs or more, expected at most {TENSORS_MAX}",
        ),
        (
            with_(outputs=[{}] * (TENSORS_MAX + 1)),
            f"outputs or more, expected at most {TENSORS_MAX}",
        ),
        (
            with_(parameters=parameters(m.PARAMETERS_MAX + 7)),
            f"263 parameters, expected at most {m.PARAMETERS_MAX}",
        ),
        (with_(parameters=parameters(1, FIELD_BYTES_MAX)), f"expected at most {FIELD_BYTES_MAX}"),
        (with_(parameters=parameters(10, 30_000)), f"expected at most {BESIDE_BYTES_MAX}"),
        (with_(raw_input_contents=[b""] * FIELDS_MAX), f"more than {FIELDS_MAX} fields"),
        (
            with_(inputs=[{"name": "x", "shape": [1] * (PART_BYTES + 1)}]),
            f"beside its contents, expected at most {PART_BYTES}",
        ),
        (
            with_(inputs=[{"contents": {"bytes_contents": [b"x" * STRUCTURE_BYTES_MAX]}}]),
            f"expected at most {STRUCTURE_BYTES_MAX}; send large tensors as raw",
        ),
    ],
    ids=lambda given: given[:30] if isinstance(given, str) else "",
)
def test_every_part_has_a_limit(message: Any, what: str) -> None:
    with pytest.raises(RequestError) as found:
        stepped(message.SerializeToString())
    assert what in found.value.message


def test_many_inputs_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [0]
    look = place_of

    def looking(*given: Any) -> Any:
        counts[-1] += 1
        return look(*given)

    monkeypatch.setattr(large, "place_of", looking)
    data = with_(inputs=tensors(TENSORS_MAX)).SerializeToString()
    for _ in in_steps(data):
        counts.append(0)
    assert sum(counts) == TENSORS_MAX
    assert max(counts) <= INPUTS_PER_STEP


def test_what_is_beside_inputs_is_merged_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    merge = large._merge

    def merging(message: Any, kept: list[memoryview]) -> None:
        sizes.append(sum(map(len, kept)))
        merge(message, kept)

    monkeypatch.setattr(large, "_merge", merging)
    outputs = [{"name": "x" * 90}] * TENSORS_MAX
    message = with_(inputs=tensors(1), outputs=outputs, parameters=parameters(60, 100))
    data = message.SerializeToString()
    found, steps = ended(in_steps(data))
    assert found == decoded_request(data)
    assert max(sizes) <= PART_BYTES + 200
    assert len(sizes) <= sum(sizes) / PART_BYTES + 2
    assert steps > len(sizes)


def test_many_raw_contents_are_looked_at_a_few_at_a_time() -> None:
    """Reading a request of one input takes as many steps as there are parts; this has none."""
    message = with_(raw_input_contents=[b""] * (FIELDS_MAX - 1))
    _, steps = ended(in_steps(message.SerializeToString()))
    _, fewest = ended(in_steps(with_().SerializeToString()))
    assert steps - fewest == FIELDS_MAX / 512


@pytest.mark.parametrize(
    ("part", "parts", "count"),
    [(b"\x10\x05" * 3000, 100, 1), (b"\x10\x05" * 3000, 2, 30), (b"", FIELDS_MAX - 2, 3)],
    ids=["many in one", "two in each", "empty"],
)
def test_contents_in_parts_are_read_a_few_at_a_time(
    part: bytes, parts: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = b"\x2a" + varint(len(part)) + part
    body = b"\x0a\x01x\x12\x05INT32" + field * parts
    data = b"\x0a\x01m" + (b"\x2a" + varint(len(body)) + body) * count
    expected = decoded_request(data)
    sizes = [0]
    calls = [0]
    read = large._read

    def reading(message: bytes, *more: Any) -> bytes:
        sizes[-1] += len(message)
        calls[-1] += 1
        return read(message, *more)

    monkeypatch.setattr(large, "_read", reading)
    steps = in_steps(data)
    assert stepped(data) == expected
    sizes[:] = calls[:] = [0]
    for _ in steps:
        sizes.append(0)
        calls.append(0)
    assert sum(sizes) == len(part) * parts * count
    assert max(sizes) <= 2 * PART_BYTES
    assert max(calls) <= large.FIELDS_PER_STEP + 1


@pytest.mark.parametrize(
    ("message", "light"),
    [
        (with_(inputs=tensors(50)), True),
        (with_(inputs=tensors(LIGHT_FIELDS_MAX + 40)), False),
        (with_(raw_input_contents=[bytes(100)] * 63), True),
        (with_(raw_input_contents=[bytes(100)] * 64), False),
        (with_(raw_input_contents=[bytes(10_000_000)] * 3, inputs=tensors(3)), True),
        (with_(raw_input_contents=[b""] * 2_000), False),
        (with_(outputs=[{"name": "x" * 30}] * LIGHT_FIELDS_MAX), False),
        (with_(parameters=parameters(1, 16 * 1024)), False),
        (with_(parameters=parameters(1, 16 * 1024 - 100)), True),
    ],
)
def test_what_is_read_at_once_is_little(message: Any, light: bool) -> None:
    data = message.SerializeToString()
    assert is_light(data) is light
    assert is_light(memoryview(data)) is light


def test_anything_short_is_read_at_once() -> None:
    assert is_light(b"\x07" * LIGHT_BYTES)
    with pytest.raises(RequestError, match="cannot be decoded"):
        is_light(b"\x07" * (LIGHT_BYTES + 1))


def test_the_id_of_what_cannot_be_read() -> None:
    data = with_(id="é").SerializeToString()
    assert request_id(data) == "é"
    assert request_id(data + b"\x07") == ""
    assert request_id(b"\x1a\x01\xff") == ""
    assert request_id(b"\x1a\x01a\x1a\x01b") == "b"
    assert request_id(b"") == ""
    unknown = b"\xf8\x07\x05"
    assert request_id(unknown * (LIGHT_FIELDS_MAX - 1) + b"\x1a\x01a") == "a"
    assert request_id(unknown * LIGHT_FIELDS_MAX + b"\x1a\x01a") == ""

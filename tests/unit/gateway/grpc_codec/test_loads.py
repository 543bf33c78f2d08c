"""Files of a load, which are views of its message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from naiad.gateway.grpc_codec import loads
from naiad.gateway.grpc_codec.loads import (
    FIELDS_MAX,
    FILE_BYTES_MIN,
    PARAMETERS_MAX,
    STRUCTURE_BYTES_MAX,
    load_request,
)
from naiad.protocol.errors import RequestError

Request = service_pb2.RepositoryModelLoadRequest
Parameter = service_pb2.ModelRepositoryParameter

VALUES = st.one_of(
    st.builds(lambda value: Parameter(bytes_param=value), st.binary(max_size=80)),
    st.builds(lambda value: Parameter(string_param=value), st.text(max_size=40)),
    st.builds(lambda value: Parameter(int64_param=value), st.integers(0, 9)),
    st.builds(Parameter),
)


def choice(value: Any) -> Any:
    chosen = value.WhichOneof("parameter_choice")
    return chosen and (chosen, getattr(value, chosen))


@given(st.text(max_size=5), st.dictionaries(st.text(max_size=20), VALUES, max_size=5))
def test_any_load(name: str, parameters: dict[str, Any]) -> None:
    data = Request(model_name=name, parameters=parameters).SerializeToString()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loads, "FILE_BYTES_MIN", 30)
        request, files = load_request(data)
    found = {key: choice(value) for key, value in request.parameters.items()}
    found |= {key: ("bytes_param", bytes(value)) for key, value in files.items()}
    assert found == {key: choice(value) for key, value in parameters.items()}
    assert request.model_name == name
    long = [key for key, value in parameters.items() if len(value.bytes_param) >= 30]
    assert sorted(files) >= sorted(long)


def test_large_files_are_not_copied() -> None:
    content = bytes(range(256)) * 1000
    data = Request(parameters={"file:1/a": Parameter(bytes_param=content)}).SerializeToString()
    request, files = load_request(data)
    assert not request.parameters
    view = files["file:1/a"]
    assert isinstance(view, memoryview)
    assert (view == content, view.obj) == (True, data)


def test_the_last_choice_counts() -> None:
    value = b"\x22\x90\x4e" + b"x" * 10_000
    for more, expected in ((b"\x10\x05", {}), (b"\x22\x01y", {"k": b"y"})):
        inner = value + more
        entry = b"\x0a\x01k\x12" + loads_varint(len(inner)) + inner
        _, files = load_request(b"\x1a" + loads_varint(len(entry)) + entry)
        assert {key: bytes(found) for key, found in files.items()} == expected


def loads_varint(size: int) -> bytes:
    return bytes((size & 0x7F | 0x80, size >> 7))


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (
            Request(parameters={f"{i}": Parameter() for i in range(PARAMETERS_MAX + 1)}),
            f"257 load parameters or more, expected at most {PARAMETERS_MAX}",
        ),
        (
            Request(parameters={"config": Parameter(string_param="x" * STRUCTURE_BYTES_MAX)}),
            f"beside files in a load, expected at most {STRUCTURE_BYTES_MAX}",
        ),
        (Request.FromString(b"\xf8\x07\x05" * (FIELDS_MAX + 1)), f"more than {FIELDS_MAX} fields"),
    ],
    ids=["parameters", "bytes", "fields"],
)
def test_the_rest_has_a_limit(message: Any, what: str) -> None:
    with pytest.raises(RequestError) as found:
        load_request(message.SerializeToString())
    assert what in found.value.message


@pytest.mark.parametrize(
    "data",
    [b"\x1a\x80\x80\x04abc", b"\x1b", b"\x1a\x90\x4e" + b"\x0b" * 10_000, b"\x1a\x03\x0a\x01\xff"],
)
def test_what_is_no_load(data: bytes) -> None:
    with pytest.raises(RequestError, match="cannot be decoded"):
        load_request(data)


def test_short_files_are_parameters() -> None:
    parameters = {"file:1/a": Parameter(bytes_param=bytes(FILE_BYTES_MIN - 100))}
    request, files = load_request(Request(parameters=parameters).SerializeToString())
    assert (len(request.parameters), files) == (1, {})

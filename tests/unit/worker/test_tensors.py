"""BYTES parsing is exact and bounded; arrays and packed bytes are each other's inverse."""

from struct import pack

import numpy as np
import pytest

from naiad.protocol.errors import RequestError
from naiad.worker.tensors import Input, bytes_offsets, pack_array, pack_bytes, to_array


@pytest.mark.parametrize(
    ("packed", "count", "said"),
    [
        (b"", 1, "expected 1 string elements, got 0"),
        (b"\1\0\0", 1, "expected a length of 4 bytes, got 3 bytes"),
        (pack("<I", 5) + b"abcd", 1, "its length says 5 bytes, only 4 are left"),
        (pack("<I", 0xFFFFFFFF) + b"abcd", 1, "its length says 4294967295 bytes"),
        (pack_bytes([b"a", b"b"]), 1, "expected 1 string elements, got more"),
        (pack_bytes([b"a", b"b"]), 3, "expected 3 string elements, got 2"),
        (pack_bytes([b"a", b"b"]) + b"\0", 2, "expected 2 string elements, got more"),
        (pack_bytes([b"a"]), 0, "expected 0 string elements, got more"),
    ],
)
def test_malformed_bytes_are_refused_by_element(packed: bytes, count: int, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        bytes_offsets(packed, count)


def test_bytes_offsets_of_well_formed_elements() -> None:
    assert bytes_offsets(pack_bytes([b"ab", b"", b"cde"]), 3) == [0, 6, 10, 17]
    assert bytes_offsets(b"", 0) == [0]


def test_bytes_survive_a_round_trip_in_row_major_order() -> None:
    elements = [f"{number}\0é".encode() for number in range(12)]
    array = to_array("BYTES", (2, 3, 2), memoryview(pack_bytes(elements)))
    assert array.shape == (2, 3, 2)
    assert array[1, 2, 1] == elements[-1]
    assert bytes(pack_array("BYTES", array)) == pack_bytes(elements)


@pytest.mark.parametrize("array", [np.array(["a", "bé"]), np.array([b"a", "bé".encode()])])
def test_numpy_strings_pack_as_utf8(array: np.ndarray) -> None:
    assert bytes(pack_array("BYTES", array)) == pack_bytes([b"a", "bé".encode()])


def test_elements_that_are_no_strings_are_refused() -> None:
    with pytest.raises(TypeError, match="expected bytes or str elements, got int"):
        pack_array("BYTES", np.array([b"a", 7], dtype=object))


@pytest.mark.parametrize("name", ["float32", "int64", "bool", "float16", "uint8"])
def test_fixed_size_arrays_survive_a_round_trip(name: str) -> None:
    datatype = {"float32": "FP32", "int64": "INT64", "bool": "BOOL", "float16": "FP16"}.get(
        name, "UINT8"
    )
    array = np.arange(6).reshape(2, 3).astype(name)
    back = to_array(datatype, (2, 3), pack_array(datatype, array))
    assert back.dtype == array.dtype
    assert (back == array).all()


def test_an_array_of_another_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match="expected an array of float32, got float64"):
        pack_array("FP32", np.zeros(3))


def test_big_endian_and_strided_arrays_are_packed_as_the_wire_wants_them() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4).T
    assert bytes(pack_array("INT32", array)) == array.astype("<i4").tobytes()


def test_input_arrays_are_read_only_aligned_and_made_once() -> None:
    packed = memoryview(b"x" + np.arange(4, dtype="float32").tobytes())[1:]
    tensor = Input("INPUT0", "FP32", (1, 4), packed)
    array = tensor.array()
    assert array is tensor.array()
    assert array.flags.aligned
    assert not array.flags.writeable
    assert array.tolist() == [[0, 1, 2, 3]]


def test_empty_tensors() -> None:
    assert to_array("FP32", (1, 0), memoryview(b"")).shape == (1, 0)
    assert bytes(pack_array("FP32", np.zeros((0, 3), dtype="float32"))) == b""
    assert to_array("BYTES", (0,), memoryview(b"")).shape == (0,)
    assert to_array("BF16", (2,), memoryview(b"\1\0\2\0")).tolist() == [1, 2]

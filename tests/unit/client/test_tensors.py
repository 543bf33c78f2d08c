"""Arrays to bytes and back: every datatype, every layout, strings to the last byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.client.tensors import (
    array_of,
    from_bfloat16,
    pack_bytes,
    packed_array,
    packed_arrays,
    to_bfloat16,
    unpack_bytes,
)
from naiad.protocol.datatypes import NUMPY_NAME
from naiad.protocol.errors import ModelError, RequestError


def there_and_back(given: Any) -> Any:
    (item,) = packed_arrays({"x": given})
    assert item == packed_array("x", given)
    name, datatype, shape, place, region, offset, size, data = item
    assert (name, place, region, offset, size) == ("x", 0, 0, 0, len(data or b""))
    assert data is not None
    return array_of(datatype, shape, data, copy=True)


@pytest.mark.parametrize("name", NUMPY_NAME.values())
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 4), (70, 80)])
def test_numbers_of_every_kind_and_shape(name: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 3).reshape(shape).astype(name)
    back = there_and_back(array)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert back.shape == shape


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(4, 6).T,
        np.arange(24).reshape(4, 6)[::-1, ::2],
        np.broadcast_to(np.arange(5000), (3, 5000)),
        np.asfortranarray(np.arange(40_000).reshape(200, 200)),
        np.arange(10, dtype=">i4"),
        np.arange(10_000, dtype=">f8"),
        np.array([1.0, 2.0]).view(np.recarray),
    ],
)
def test_any_memory_layout(array: Any) -> None:
    np.testing.assert_array_equal(there_and_back(array), array)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array([b"a\0", b"\0", b""], dtype=object), [b"a\0", b"\0", b""]),
        (np.array(["ä", "b"], dtype=object), ["ä".encode(), b"b"]),
        (np.array(["ä", "b"]), ["ä".encode(), b"b"]),
        (np.array([b"ab", b"c"]), [b"ab", b"c"]),
        (np.array([bytearray(b"ab"), memoryview(b"c")], dtype=object), [b"ab", b"c"]),
        ([b"a\0", "b"], [b"a\0", b"b"]),
        ([["a"], ["b"]], [[b"a"], [b"b"]]),
        ("one", b"one"),
        (np.array([], dtype=object), []),
    ],
)
def test_strings_keep_every_byte(given: Any, expected: Any) -> None:
    assert there_and_back(given).tolist() == expected


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_bytes(items: list[bytes]) -> None:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    data = pack_bytes("x", array)
    assert unpack_bytes(data, (len(items),)).tolist() == items


@pytest.mark.parametrize(
    ("data", "shape"),
    [(b"", (1,)), (b"\1\0\0", (1,)), (b"\5\0\0\0ab", (1,)), (b"\0\0\0\0" * 3, (2,)), (b"x", (0,))],
)
def test_broken_strings_are_the_models_fault(data: bytes, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="whole elements"):
        unpack_bytes(data, shape)


@pytest.mark.parametrize("given", [[1, 2], 3, 2.5, [[True]], (1.0, 2.0)])
def test_what_becomes_an_array_may_be_given(given: Any) -> None:
    np.testing.assert_array_equal(there_and_back(given), np.asarray(given))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.array([1j]), "no datatype for NumPy's complex128"),
        (np.array([3.5, None]), "expected bytes or str elements, got float"),
        ([[1, 2], [3]], "not an array"),
        (np.zeros(2, dtype="datetime64[s]"), "no datatype"),
    ],
)
def test_what_cannot_be_sent_says_why(given: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        packed_array("x", given)


def test_a_name_must_be_a_string() -> None:
    with pytest.raises(RequestError, match="input's name as a string"):
        packed_arrays({3: np.zeros(2)})  # type: ignore[dict-item]


def test_bfloat16_rounds_to_even_and_keeps_what_is_special() -> None:
    exact = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, 2.0**-126, 3.0e38], np.float32)
    back = from_bfloat16(to_bfloat16(exact))
    np.testing.assert_array_equal(back[:7], exact[:7])
    assert abs(back[7] / exact[7] - 1) < 2**-8
    assert np.isnan(from_bfloat16(to_bfloat16([np.nan])))[0]
    halves = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    assert to_bfloat16(halves).tolist() == [0x3F80, 0x3F82]
    assert to_bfloat16(5.0).shape == ()


def test_bfloat16_travels_as_its_bits() -> None:
    bits = to_bfloat16([[1.0, 2.0]])
    (item,) = packed_arrays({"x": bits})
    assert item[1:3] == ("BF16", (1, 2))
    assert item[7] is not None
    back = array_of("BF16", (1, 2), item[7], copy=True)
    assert back.dtype == np.uint16
    assert from_bfloat16(back).tolist() == [[1.0, 2.0]]


def test_ml_dtypes_are_understood() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -3.0], dtype=ml_dtypes.bfloat16)
    item = packed_array("x", array)
    assert item[1] == "BF16"
    assert item[7] is not None
    assert from_bfloat16(np.frombuffer(item[7], np.uint16)).tolist() == [1.5, -3.0]


def test_small_arrays_are_copied_and_large_ones_referred_to() -> None:
    small, large = np.zeros(10), np.zeros(10_000)
    items = packed_arrays({"small": small, "large": large})
    small[0] = large[0] = 7
    assert np.frombuffer(items[0][7] or b"")[0] == 0
    assert np.frombuffer(items[1][7] or b"")[0] == 7


@pytest.mark.parametrize("datatype", ["FP32", "FP33"])
def test_outputs_that_do_not_fit_are_the_models_fault(datatype: str) -> None:
    with pytest.raises(ModelError):
        array_of(datatype, (3,), b"1234", copy=True)

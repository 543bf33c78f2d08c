"""Arrays over borrowed bytes: no copy, right lifetime, one copy in."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from naiad.protocol.datatypes import ITEM_BYTES, NUMPY_NAME
from naiad.protocol.errors import RequestError
from naiad.shm.tensor import Keeper, array_over, copy_into, view_over


@pytest.mark.parametrize("datatype", [name for name in ITEM_BYTES if name != "BYTES"])
def test_bytes_become_an_array_of_the_datatype(datatype: str) -> None:
    item = ITEM_BYTES[datatype]
    raw = bytearray(range(1, 6 * item + 1))
    if datatype == "BOOL":
        raw = bytearray(b"\1\0\1\1\0\0")
    array = array_over(memoryview(raw), datatype, (2, 3))
    assert array.shape == (2, 3)
    assert array.dtype.name == NUMPY_NAME.get(datatype, "uint16")
    assert array.tobytes() == bytes(raw)
    raw[0] = 0
    assert array.tobytes() == bytes(raw), "a view, not a copy"


def test_an_array_is_writable_exactly_if_its_bytes_are() -> None:
    raw = bytearray(8)
    array_over(memoryview(raw), "INT64", (1,))[0] = 1
    assert raw[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        array_over(memoryview(raw).toreadonly(), "INT64", (1,))[0] = 2
    with pytest.raises(ValueError, match="read-only"):
        array_over(bytes(raw), "INT64", (1,))[0] = 2


@pytest.mark.parametrize(("shape", "size"), [((), 8), ((0, 3), 0), ((2, 0), 0), ((1, 1, 2), 16)])
def test_scalars_and_empty_tensors(shape: tuple[int, ...], size: int) -> None:
    assert array_over(bytearray(size), "FP64", shape).shape == shape


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_a_wrong_size_is_an_error(size: int) -> None:
    with pytest.raises(RequestError, match=rf"FP32 \[2\] takes 8 bytes, got {size} bytes"):
        array_over(bytes(size), "FP32", (2,))


def test_unaligned_bytes_will_do() -> None:
    raw = bytearray(17)
    array = array_over(memoryview(raw)[1:], "INT64", (2,))
    array[:] = [1, -1]
    assert raw == b"\0" + (1).to_bytes(8, "little") + b"\xff" * 8


def test_a_keeper_lives_as_long_as_any_view_of_the_array() -> None:
    calls: list[int] = []
    keep = Keeper(lambda: calls.append(1))
    array = array_over(bytearray(24), "FP32", (2, 3), keep=keep)
    del keep
    assert type(array) is np.ndarray
    views = [array[0], array.T, array.reshape(-1)[2:], array.data, array[:, 1][:, None]]
    del array
    while views:
        gc.collect()
        assert calls == []
        views.pop()
    assert calls == [1]


def test_a_keeper_lives_as_long_as_any_slice_of_the_view() -> None:
    calls: list[int] = []
    memory = bytearray(b"0123456789")
    view = view_over(memoryview(memory)[2:], Keeper(lambda: calls.append(1)))
    assert (view.format, view.ndim, len(view)) == ("B", 1, 8)
    part = view[4:].cast("H")
    memory[6] = ord("x")
    del view
    gc.collect()
    assert bytes(part) == b"x789"
    assert calls == []
    del part
    assert calls == [1]


def test_a_view_is_writable_exactly_if_its_bytes_are() -> None:
    assert not view_over(memoryview(bytearray(4)), None).readonly
    assert view_over(memoryview(bytes(4)), None).readonly
    assert len(view_over(memoryview(b""), None)) == 0


def test_one_keeper_serves_all_outputs_of_an_answer() -> None:
    calls: list[int] = []
    keep = Keeper(lambda: calls.append(1))
    first = array_over(bytearray(8), "FP32", (2,), keep=keep)
    second = array_over(bytearray(8), "FP32", (2,), keep=keep)
    del keep, first
    assert calls == []
    del second
    assert calls == [1]


def test_derived_arrays_that_own_their_bytes_do_not_hold_the_memory() -> None:
    calls: list[int] = []
    array = array_over(bytearray(8), "FP32", (2,), keep=Keeper(lambda: calls.append(1)))
    kept = (array + 1, array.copy(), array.sum())
    del array
    assert calls == [1]
    assert len(kept) == 3


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(48, dtype=np.int16)[::2],
        np.arange(12, dtype=">i4"),
        np.zeros((0, 4), np.float64),
        np.array(3.5),
        np.broadcast_to(np.float32(7), (3, 3)),
    ],
)
def test_copying_packs_any_layout(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    memory = bytearray(array.nbytes)
    copy_into(memoryview(memory), array)
    little = array.astype(array.dtype.newbyteorder("<"))
    assert bytes(memory) == little.tobytes(order="C")


def test_copying_never_writes_beyond() -> None:
    memory = bytearray(12)
    with pytest.raises(RequestError, match="8 bytes do not fit 4 bytes"):
        copy_into(memoryview(memory)[4:8], np.ones(8, np.uint8))
    copy_into(memoryview(memory)[4:8], np.ones(4, np.uint8))
    assert bytes(memory) == b"\0\0\0\0\1\1\1\1\0\0\0\0"

"""Arrays in GPU memory: what others' say of theirs, and what ours say, over the fake CUDA."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from naiad.protocol.datatypes import NUMPY_NAME
from naiad.protocol.errors import RequestError
from naiad.shm.cuda import dlpack
from naiad.shm.cuda.arrays import DeviceArray, DeviceView, view_of
from support import fake_cuda_ipc
from support.fake_cupy import Interfaced, Packed

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Any]:
    device = fake_cuda_ipc.reset()
    yield device
    device.close()


@pytest.mark.parametrize(("datatype", "name"), NUMPY_NAME.items())
def test_the_interface_tells_all(datatype: str, name: str) -> None:
    array = Interfaced(np.zeros((2, 3), name))
    size = 6 * np.dtype(name).itemsize
    expected = DeviceView(array.address, size, 0, datatype, (2, 3), False)
    assert view_of(array, fake_cuda_ipc.loaded()) == expected


@pytest.mark.parametrize("datatype", [*NUMPY_NAME, "BF16"])
def test_ours_are_read_as_they_are_by_interface_and_by_dlpack(datatype: str) -> None:
    source = Interfaced(np.zeros(64, np.uint8))
    ours = DeviceArray(source.address, 0, datatype, (2, 3), None)
    found = view_of(ours, fake_cuda_ipc.loaded())
    assert found == DeviceView(source.address, ours.nbytes, 0, datatype, (2, 3), False)
    assert hasattr(ours, "__cuda_array_interface__") is (datatype != "BF16")
    assert dlpack.read_capsule(ours.__dlpack__(stream=1))[:5] == (
        source.address,
        dlpack.CUDA_DEVICE,
        0,
        datatype,
        (2, 3),
    )


def test_dlpack_tells_where_the_interface_cannot() -> None:
    array = Packed(VALUES.astype(np.uint16), "BF16")
    view = view_of(array, fake_cuda_ipc.loaded())
    assert view == DeviceView(array.address, 12, 0, "BF16", (2, 3), False)


class Fails(Packed):
    """As a tensor of PyTorch that requires grad; `where` it fails, and how."""

    def __init__(self, where: str, fault: Exception) -> None:
        super().__init__(VALUES.astype(np.uint16), "BF16")
        self.where, self.fault = where, fault

    @property
    def __cuda_array_interface__(self) -> Any:
        raise self.fault

    def __dlpack__(self, **more: object) -> object:
        if self.where == "capsule":
            raise self.fault
        return super().__dlpack__(**more)

    def __dlpack_device__(self) -> Any:
        if self.where == "device":
            raise self.fault
        return "cuda" if self.where == "words" else super().__dlpack_device__()


@pytest.mark.parametrize("where", ["capsule", "device", "words"])
@pytest.mark.parametrize("fault", [BufferError("use detach()"), ValueError("no"), KeyError("k")])
def test_what_dlpack_raises_refuses_the_array(where: str, fault: Exception) -> None:
    with pytest.raises(
        RequestError, match=r"expected Fails to tell its memory by DLPack: "
    ) as told:
        view_of(Fails(where, fault), fake_cuda_ipc.loaded())
    assert where == "words" or f"{type(fault).__name__}: {fault}" in told.value.message


@pytest.mark.parametrize(
    "changed", [{"data": None}, {"data": (1,)}, {"shape": None}, {"typestr": []}, {"strides": 3}]
)
def test_an_interface_that_is_none_refuses_the_array(changed: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="expected __cuda_array_interface__ "):
        view_of(Interfaced(VALUES, **changed), fake_cuda_ipc.loaded())


class Taken:
    """Gives NumPy our capsule, as if its memory were the CPU's."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    def __dlpack__(self, **_: object) -> object:
        capsule = self.array.__dlpack__()
        dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor")).tensor.device_type = 1
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_a_consumer_keeps_the_memory_as_long_as_it_needs_it() -> None:
    memory = Interfaced(VALUES)
    ours = DeviceArray(memory.address, 0, "FP32", (2, 3), memory)
    watched = weakref.ref(memory)
    taken: Any = np.from_dlpack(Taken(ours))  # type: ignore[arg-type]
    del memory, ours
    gc.collect()
    assert watched() is not None
    np.testing.assert_array_equal(taken, VALUES)
    del taken
    gc.collect()
    assert watched() is None
    assert not dlpack._lent


def test_a_capsule_that_nobody_takes_keeps_nothing() -> None:
    memory = Interfaced(VALUES)
    capsule = DeviceArray(memory.address, 0, "FP32", (2, 3), memory).__dlpack__()
    assert len(dlpack._lent) == 1
    del capsule
    assert not dlpack._lent


def test_a_used_capsule_is_refused() -> None:
    class Used(Packed):
        def __dlpack__(self, **_: object) -> object:
            return object()

    with pytest.raises(RequestError, match="a capsule of DLPack"):
        view_of(Used(VALUES, "FP32"), fake_cuda_ipc.loaded())


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"strides": (4, 8)}, "contiguous in C order"),
        ({"strides": (24, 4)}, "contiguous in C order"),
        ({"mask": object()}, "without a mask"),
        ({"typestr": "<c8"}, "a datatype that KServe has"),
        ({"typestr": ">f4"}, "a datatype that KServe has"),
    ],
)
def test_what_cannot_be_shared_as_it_is_is_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        view_of(Interfaced(VALUES, **changed), fake_cuda_ipc.loaded())


@pytest.mark.parametrize("strides", [None, (12, 4)])
def test_strides_of_packed_arrays_are_fine(strides: Any) -> None:
    assert view_of(Interfaced(VALUES, strides=strides), fake_cuda_ipc.loaded()).shape == (2, 3)


def test_strides_of_dimensions_of_one_do_not_count() -> None:
    array = Interfaced(np.zeros((1, 3), np.float32), strides=(999, 4))
    assert view_of(array, fake_cuda_ipc.loaded()).size == 12


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1, 2], "with __cuda_array_interface__ or __dlpack__, got list"),
        (VALUES, r"on the DLPack device \(1, 0\); arrays in ordinary memory are given by name"),
    ],
)
def test_what_is_not_on_a_gpu_is_refused(given: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        view_of(given, fake_cuda_ipc.loaded())


def test_an_address_that_cuda_does_not_know_is_refused() -> None:
    array = Interfaced(VALUES, data=(4096, False))
    with pytest.raises(RequestError, match="in the memory of a GPU: CUDA error 1"):
        view_of(array, fake_cuda_ipc.loaded())


def test_managed_memory_is_refused() -> None:
    with pytest.raises(RequestError, match=r"DLPack device \(13, 0\)"):
        view_of(Packed(VALUES, "FP32", device_type=13), fake_cuda_ipc.loaded())

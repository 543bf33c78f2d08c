"""pb_utils.Tensor: a named array, going into a model or coming out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from naiad.shm.cuda.arrays import DeviceArray
from naiad.worker.backends.base import DeviceSpan, InputTensor, OutputTensor
from naiad.worker.backends.gather import packed_bytes
from naiad.worker.backends.triton_python import dlpack
from naiad.worker.backends.triton_python.datatypes import (
    DATATYPE_NUMBER,
    array_datatype,
    string_elements,
)
from naiad.worker.backends.triton_python.errors import TritonModelException
from naiad.worker.device_tensors import DeviceInput
from naiad.worker.tensors import pack_bytes

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array


class Tensor:
    """Tensor(name, array) keeps the array's own dtype: nothing is converted, or copied.

    An input's array is the model's own, to be changed as it likes; it is made when first asked for.
    What lies in GPU memory is no array here: other libraries take it by DLPack, or by
    `__cuda_array_interface__`.
    """

    __slots__ = ("_array", "_datatype", "_device", "_name", "_shape", "_source")

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(
                f"Tensor {name!r}: expected a numpy.ndarray, got {type(numpy_array).__name__}"
            )
        self._name = name
        self._datatype = array_datatype(numpy_array)
        if self._datatype == "BF16":
            numpy_array = numpy_array.view(np.uint16)
        self._array: Array | None = numpy_array
        self._shape = numpy_array.shape
        self._source: tuple[InputTensor, bool] | None = None
        self._device: DeviceArray | None = None

    @classmethod
    def of_input(cls, source: InputTensor, *, is_view: bool) -> Tensor:
        """A request's input: a private copy or, with `is_view`, a read-only view."""
        tensor = cls.__new__(cls)
        tensor._name = source.name
        tensor._datatype = source.datatype
        tensor._shape = source.shape
        tensor._array = None
        tensor._source = (source, is_view)
        tensor._device = None
        if isinstance(source, DeviceInput):
            source.wait()
            span = source.span
            tensor._device = DeviceArray(
                span.address, span.device, source.datatype, source.shape, span
            )
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._shape)

    def triton_dtype(self) -> int:
        """Triton's number of the datatype (FP32 is 11, strings are 13)."""
        return DATATYPE_NUMBER[self._datatype]

    def is_cpu(self) -> bool:
        return self._device is None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._device is None:
            raise AttributeError(f"tensor {self._name!r} is in ordinary memory; use as_numpy()")
        return self._device.__cuda_array_interface__

    def as_numpy(self) -> Array:
        """The array; strings are an object array of bytes."""
        if self._device is not None:
            raise TritonModelException(
                "Tensor is stored in GPU and cannot be converted to NumPy: use to_dlpack(), or"
                f" leave FORCE_CPU_ONLY_INPUT_TENSORS at its default ({self._name!r})"
            )
        if self._datatype == "BF16":
            raise TritonModelException(
                f"tensor {self._name!r} is BF16, which NumPy does not have; use to_dlpack()"
            )
        return self._values()

    def to_dlpack(self) -> object:
        """A DLPack capsule over the same memory."""
        if self._device is not None:
            return self._device.__dlpack__()
        return dlpack.to_capsule(self._values(), self._datatype)

    @staticmethod
    def from_dlpack(name: str, dlpack_tensor: Any) -> Tensor:
        """A tensor over the memory of a capsule, or of an object with __dlpack__ (PyTorch, ...)."""
        datatype, array = dlpack.from_capsule(dlpack_tensor)
        if isinstance(array, DeviceArray):
            return Tensor._on_gpu(name, array)
        tensor = Tensor(name, array)
        if datatype is not None:
            tensor._datatype = datatype
        return tensor

    @classmethod
    def _on_gpu(cls, name: str, array: DeviceArray) -> Tensor:
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = array.datatype
        tensor._shape = array.shape
        tensor._array = None
        tensor._source = None
        tensor._device = array
        return tensor

    def __dlpack__(self, stream: object = None, **_: object) -> object:
        """A DLPack capsule; memory of the CPU has no stream to wait for."""
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU if self._device is None else self._device.__dlpack_device__()

    def _values(self) -> Array:
        if self._array is None:
            assert self._source is not None
            source, is_view = self._source
            array = source.array()
            self._array = array if is_view else array.copy()
        return self._array

    def output(self) -> OutputTensor:
        """What the worker's loop takes."""
        if self._device is not None:
            device = self._device
            span = DeviceSpan(device.address, device.nbytes, device.device, None, device)
            return OutputTensor(self._name, self._datatype, self._shape, span=span)
        values = self._values()
        if self._datatype == "BYTES":
            packed = pack_bytes(list(string_elements(values)))
            return OutputTensor(self._name, "BYTES", self._shape, buffer=packed)
        if not values.flags.c_contiguous or not values.dtype.isnative:
            values = np.asarray(values, values.dtype.newbyteorder("="), order="C")
        return OutputTensor(self._name, self._datatype, self._shape, None, packed_bytes(values))

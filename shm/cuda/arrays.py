"""Arrays in GPU memory, of whatever library: what one's memory is, and memory as such an array.

CuPy, PyTorch, Numba, JAX and others say where their arrays lie by `__cuda_array_interface__` or by
DLPack, and take what says so. Nothing here copies, or imports any of them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from naiad.protocol.datatypes import NUMPY_NAME, tensor_bytes
from naiad.protocol.errors import RequestError
from naiad.shm.cuda.dlpack import CUDA_DEVICE, new_capsule, read_capsule
from naiad.shm.cuda.runtime import CudaFault, CudaRuntime

_LETTER: Final = {"bool": "b", "uint": "u", "int": "i", "float": "f"}


def _typestr(name: str) -> str:
    kind = name.rstrip("0123456789")
    size = int(name.removeprefix(kind) or 8) // 8
    return f"{'<' if size > 1 else '|'}{_LETTER[kind]}{size}"


_TYPESTR_OF: Final = {datatype: _typestr(name) for datatype, name in NUMPY_NAME.items()}
_DATATYPE_OF: Final = {typestr: datatype for datatype, typestr in _TYPESTR_OF.items()}


class DeviceView(NamedTuple):
    """Packed elements in C order, in the memory of a GPU."""

    address: int
    size: int
    device: int
    datatype: str
    shape: tuple[int, ...]
    is_read_only: bool


class DeviceArray:
    """A tensor in GPU memory, for any library: `torch.from_dlpack(it)`, `cupy.asarray(it)`.

    What was made from it keeps the memory, as does this object. Its bytes are complete: there is no
    stream to wait for.
    """

    def __init__(
        self, address: int, device: int, datatype: str, shape: tuple[int, ...], keep: object
    ) -> None:
        self.address = address
        self.device = device
        self.datatype = datatype
        self.shape = shape
        self._keep = keep

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.datatype, self.shape) or 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        typestr = _TYPESTR_OF.get(self.datatype)
        if typestr is None:
            raise AttributeError(
                f"{self.datatype} has no __cuda_array_interface__; use __dlpack__ (from_dlpack)"
            )
        return {
            "shape": self.shape,
            "typestr": typestr,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __dlpack__(self, **_: object) -> object:
        return new_capsule(self.address, self.device, self.datatype, self.shape, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA_DEVICE, self.device

    def __repr__(self) -> str:
        return f"<{self.datatype} {list(self.shape)} on GPU {self.device}>"


def view_of(array: Any, cuda: CudaRuntime) -> DeviceView:
    """The memory of an array of another library. Raises RequestError for what cannot be shared."""
    interface = _interface_of(array)
    view = _by_interface(interface, cuda) if interface is not None else _by_dlpack(array)
    if not view.datatype:
        raise RequestError(f"expected elements of a datatype that KServe has, got {array!r:.80}")
    return view


def _interface_of(array: Any) -> dict[str, Any] | None:
    """None where there is none, also for types that it cannot tell of (PyTorch: bfloat16)."""
    try:
        found: dict[str, Any] = array.__cuda_array_interface__
    except Exception:  # each library has its own; what it is, DLPack's says
        return None
    return found


def _by_interface(found: dict[str, Any], cuda: CudaRuntime) -> DeviceView:
    try:
        address, is_read_only = found["data"]
        shape = tuple(int(dim) for dim in found["shape"])
        datatype = _DATATYPE_OF.get(found["typestr"], "")
        size = (tensor_bytes(datatype, shape) or 0) if datatype else 0
        item = (tensor_bytes(datatype, (1,)) or 1) if datatype else 1
        strides = found.get("strides")
        steps = None if strides is None else tuple(stride // item for stride in strides)
    except (KeyError, TypeError, ValueError) as fault:
        raise RequestError(
            f"expected __cuda_array_interface__ as its version 3 is, got {found!r:.200}"
        ) from fault
    if found.get("mask") is not None:
        raise RequestError("expected an array without a mask")
    if steps is not None and datatype:
        _check_packed(shape, steps)
    try:
        device = cuda.device_of(address) if size else 0
    except CudaFault as fault:
        raise RequestError(f"expected an array in the memory of a GPU: {fault}") from fault
    return DeviceView(int(address), size, device, datatype, shape, bool(is_read_only))


def _by_dlpack(array: Any) -> DeviceView:
    if not hasattr(array, "__dlpack__"):
        raise RequestError(
            "expected an array in GPU memory, with __cuda_array_interface__ or __dlpack__, got"
            f" {type(array).__name__}"
        )
    try:
        kind, device = map(int, array.__dlpack_device__())
        capsule = array.__dlpack__() if kind == CUDA_DEVICE else None
    except Exception as fault:  # as PyTorch's BufferError of a tensor that requires grad
        raise RequestError(
            f"expected {type(array).__name__} to tell its memory by DLPack:"
            f" {type(fault).__name__}: {fault}"
        ) from fault
    if kind != CUDA_DEVICE:
        raise RequestError(
            f"expected an array in the memory of a GPU, got one on the DLPack device ({kind},"
            f" {device}); arrays in ordinary memory are given by name: {{'INPUT0': array}}"
        )
    try:
        found = read_capsule(capsule)
    except ValueError as fault:
        raise RequestError(f"expected __dlpack__ to give a capsule of DLPack: {fault}") from fault
    if found.strides is not None:
        _check_packed(found.shape, found.strides)
    size = (tensor_bytes(found.datatype, found.shape) or 0) if found.datatype else 0
    return DeviceView(found.address, size, found.device, found.datatype, found.shape, False)


def _check_packed(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    if not is_packed(shape, strides):
        raise RequestError(
            f"expected an array that is contiguous in C order, got the shape {list(shape)} with"
            f" strides of {list(strides)} elements; make it contiguous first"
        )


def is_packed(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether the elements lie side by side in C order; `strides` count elements."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if dim != 1 and stride != expected:
            return False
        expected *= dim
    return True

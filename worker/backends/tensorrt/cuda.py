"""The CUDA runtime calls that the TensorRT backend makes, each of them checked.

`cuda.bindings` returns tuples and raises nothing; here an error is a ModelError in words, memory
that is not there names both sizes, and an error after which CUDA answers nothing but that error
(a sticky one) is InstanceLost, which ends the worker. What runs in order on the device is in
streams.py. Knows nothing of engines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from naiad.config.faults import listed
from naiad.protocol.errors import Code, ModelError
from naiad.shm.cuda.errors import STICKY_ERRORS, described, without_gpu
from naiad.worker.backends.base import InstanceLost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


_SUCCESS: Final = 0
_OUT_OF_MEMORY: Final = 2


class Cuda:
    """One device, for one instance. All calls on one thread, but `unregister`."""

    def __init__(self, api: Any, model: str, device: int, uuid: str = "") -> None:
        """Raises ModelError (LOAD_FAILED) where there is no driver or no such device.

        `uuid` is for people: every worker's own GPU is number 0.
        """
        self.api = api
        self._model = model
        self.device = device
        self.name = f"GPU {device} ({uuid})" if uuid else f"GPU {device}"
        self._sizes: dict[int, int] = {}
        """Of what is allocated, by address."""
        self.growth_left: int | None = None
        """Bytes that may still be allocated; None: no limit."""
        self._probe()
        self.check(f"using GPU {device}", api.cudaSetDevice(device)[0])

    def _probe(self) -> None:
        """Before anything of TensorRT: without a driver its runtime does not fail, it crashes."""
        error, count = self.api.cudaGetDeviceCount()
        if error == _SUCCESS and count and self.device < count:
            return
        if error == _SUCCESS and count:
            what = f"there is no GPU {self.device}: CUDA sees {count}, counted from 0"
            remedy = "name another in instance_group.gpus"
        else:
            what, remedy = without_gpu(error)
        nodes = sorted(str(node) for node in Path("/dev").glob("nvidia[0-9]*"))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        limited = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}"
        raise ModelError(
            f"a TensorRT engine needs an NVIDIA GPU, and {what}; device files: "
            f"{listed(nodes)}{limited}. {remedy}; or serve the ONNX file the engine was built from "
            'with backend: "onnxruntime"',
            code=Code.LOAD_FAILED,
        )

    def compute_capability(self) -> str:
        """Such as "9.0"."""
        kinds = self.api.cudaDeviceAttr
        major, minor = (
            self.call("cudaDeviceGetAttribute", kind, self.device)
            for kind in (
                kinds.cudaDevAttrComputeCapabilityMajor,
                kinds.cudaDevAttrComputeCapabilityMinor,
            )
        )
        return f"{major}.{minor}"

    # --- Memory ------------------------------------------------------------------------------

    def allocate(self, size: int, what: str) -> int:
        """Device memory; its address. Raises ModelError, with both sizes, when there is none."""
        if self.growth_left is not None and size > self.growth_left:
            raise ModelError(
                f"model {self._model!r}: out of GPU memory: {what} needs {size} bytes, "
                f"naiad.gpu_memory_limit_mb leaves {self.growth_left} on {self.name}; send smaller "
                "requests, or raise the limit"
            )
        error, address = self.api.cudaMalloc(size)
        if error == _OUT_OF_MEMORY:
            self.api.cudaGetLastError()  # a later call must not be blamed for it
            raise self.out_of_memory(size, what)
        self.check(f"allocating {size} bytes for {what}", error)
        self._sizes[int(address)] = size
        if self.growth_left is not None:
            self.growth_left -= size
        return int(address)

    def free(self, address: int) -> None:
        self.call("cudaFree", address)
        size = self._sizes.pop(address)
        if self.growth_left is not None:
            self.growth_left += size

    def allocate_pinned(self, size: int) -> int | None:
        """Host memory that the device reads and writes by itself; None when there is none."""
        error, address = self.api.cudaHostAlloc(size, self.api.cudaHostAllocDefault)
        if error == _OUT_OF_MEMORY:
            self.api.cudaGetLastError()
            return None
        self.check(f"allocating {size} bytes of pinned memory", error)
        return int(address)

    def free_pinned(self, address: int) -> None:
        self.call("cudaFreeHost", address)

    def out_of_memory(self, size: int, what: str) -> ModelError:
        free, total = self.call("cudaMemGetInfo")
        return ModelError(
            f"model {self._model!r}: out of GPU memory: {what} needs {size} bytes, {free} of "
            f"{total} bytes are free on {self.name}; serve fewer instances or models on this "
            "GPU, or build the engine with smaller profiles"
        )

    def register(self, address: int, size: int, *, is_read_only: bool) -> str:
        """Let the device read and write this host memory by itself; why not, if it cannot.

        What is registered must be unregistered while it is still mapped.
        """
        flags = self.api.cudaHostRegisterPortable
        if is_read_only:
            flags |= self.api.cudaHostRegisterReadOnly
        error = self.api.cudaHostRegister(address, size, flags)[0]
        if error == _SUCCESS:
            return ""
        self.forget_error("registering shared memory")
        return f"CUDA error {int(error)} ({error.name})"

    def unregister(self, address: int) -> str:
        """Raises nothing: it is called where memory goes. Why it failed, if it did."""
        error = self.api.cudaHostUnregister(address)[0]
        if error == _SUCCESS:
            return ""
        self.api.cudaGetLastError()  # a sticky one stays, and ends the worker at its next call
        return f"CUDA error {int(error)} ({error.name})"

    # --- Errors ------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Any) -> Any:
        """A runtime call by name: what it returns behind its error, or ModelError, InstanceLost."""
        error, *values = getattr(self.api, name)(*arguments)
        self.check(name, error)
        return values[0] if len(values) == 1 else tuple(values)

    def forget_error(self, what: str) -> None:
        """Clear the error that a library met and told of itself; InstanceLost if it stays."""
        error = self.api.cudaGetLastError()[0]
        if int(error) in STICKY_ERRORS:
            self.check(what, error)

    def check(self, what: str, error: Any) -> None:
        """Raise what an error code means, if it is one."""
        code = int(error)
        if code == _SUCCESS:
            return
        text = f"{what}: {described(self.api, error)}"
        if code in STICKY_ERRORS:
            raise InstanceLost(
                f"model {self._model!r} on {self.name}: {text}; nothing more can run in this "
                "process"
            )
        self.api.cudaGetLastError()  # TensorRT, or a later call, must not be blamed for it
        raise ModelError(f"model {self._model!r} on {self.name}: {text}")

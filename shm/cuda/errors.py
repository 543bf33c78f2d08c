"""CUDA's errors: numbers that mean something to naiad, and words for people."""

from __future__ import annotations

from typing import Any, Final

RUNTIME_MODULE: Final = "cuda.bindings.runtime"
DRIVER_MODULE: Final = "cuda.bindings.driver"

NO_DRIVER_ERRORS: Final = frozenset({34, 35})
NO_CONTEXT_ERROR: Final = 201
"""CUDA_ERROR_INVALID_CONTEXT: nothing of CUDA has been called in this thread."""
NOT_READY_ERROR: Final = 600
UNKNOWN_ERROR: Final = 999
STICKY_WORDS: Final = {
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    226: "Invalid access of peer GPU memory over nvlink or a hardware error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    810: "the MPS client has been terminated by the server",
    911: "an async error has occured in external entity outside of CUDA",
}
"""The errors that CUDA never leaves again, in its own words. UNKNOWN_ERROR is another, but its
words ("unknown error") say nothing by themselves."""
STICKY_ERRORS: Final = frozenset({*STICKY_WORDS, UNKNOWN_ERROR})
"""After these a process can do nothing more on its GPU, and must end."""


def described(api: Any, error: Any) -> str:
    """An error that a call of this CUDA runtime (`cuda.bindings.runtime`) answered with."""
    told = api.cudaGetErrorString(error)[1]
    words = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
    return f"CUDA error {int(error)} ({error.name}): {words}"


def without_gpu(error: Any) -> tuple[str, str]:
    """Why cudaGetDeviceCount told of none, and what to do."""
    if int(error) in NO_DRIVER_ERRORS:
        return (
            f"there is no NVIDIA driver that this CUDA runtime can use ({error.name})",
            "install a driver (`nvidia-smi` must work), or give the container the GPU",
        )
    return f"CUDA sees no GPU ({error.name})", "look at `nvidia-smi` and CUDA_VISIBLE_DEVICES"

"""The kernels: compiled by NVRTC for this GPU, or taken from kernels.ptx, and launched.

`affine` stands for an engine (y = 2x + 1, for as long as it is told); it can note when it ran.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gpu_checks.gpu import CudaFailed, Gpu

SOURCE: Final = Path(__file__).with_name("kernels.cu")
PTX: Final = Path(__file__).with_name("kernels.ptx")
"""Of SOURCE, for compute capability 7.5 and later, which the driver compiles at load. Its version
line is lowered to 6.4, so that old drivers take it; a test compares the rest with what NVRTC
gives."""
THREADS: Final = 256
LOADING_US: Final = 10
BLOCKS_MAX: Final = 1024
STAMPS_MAX: Final = 4096
STAMPS_BYTES: Final = 8 * (1 + 2 * STAMPS_MAX)


class NoCompiler(Exception):
    """NVRTC is not installed."""


def compiled(option: bytes) -> bytes:
    """SOURCE as a cubin; as PTX where `option` is of the kind b"--gpu-architecture=compute_75"."""
    nvrtc: Any = import_module("cuda.bindings.nvrtc")
    try:
        error, program = nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), b"kernels.cu", 0, [], [])
    except RuntimeError as missing:  # no libnvrtc
        raise NoCompiler(str(missing)) from missing
    _must("nvrtcCreateProgram", error)
    error = nvrtc.nvrtcCompileProgram(program, 1, [option])[0]
    if int(error):
        size = nvrtc.nvrtcGetProgramLogSize(program)[1]
        log = bytes(size)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CudaFailed(f"nvrtcCompileProgram {option!r}: {log!r}", error)
    code: bytes
    if b"compute_" in option:
        size = nvrtc.nvrtcGetPTXSize(program)[1]
        code = bytes(size)
        _must("nvrtcGetPTX", nvrtc.nvrtcGetPTX(program, code)[0])
    else:
        size = nvrtc.nvrtcGetCUBINSize(program)[1]
        code = bytes(size)
        _must("nvrtcGetCUBIN", nvrtc.nvrtcGetCUBIN(program, code)[0])
    nvrtc.nvrtcDestroyProgram(program)
    return code


def _must(name: str, error: Any) -> None:
    if int(error):
        raise CudaFailed(name, error)


class Kernels:
    """The kernels on one GPU. `origin` says where they come from."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        try:
            code = compiled(f"--gpu-architecture=sm_{gpu.capability()}".encode())
            self.origin = "NVRTC"
        except NoCompiler as error:
            code = PTX.read_bytes() + b"\0"
            self.origin = f"kernels.ptx (no NVRTC: {str(error).splitlines()[0]})"
        self._module = gpu.call("cuModuleLoadData", code)
        self._affine = gpu.call("cuModuleGetFunction", self._module, b"affine")
        self._trap = gpu.call("cuModuleGetFunction", self._module, b"trap_now")

    def load(self, stream: Any) -> None:
        """Launch one and wait: the first launch loads it, which nobody wants to measure."""
        self.busy(stream, LOADING_US)
        self._gpu.finish(stream)

    def affine(
        self, stream: Any, x: int, y: int, count: int, *, busy_us: float = 0, stamps: int = 0
    ) -> None:
        """Of `count` numbers; the addresses of x and y may be null when there are none."""
        blocks = max(1, min(BLOCKS_MAX, -(-count // THREADS)))
        values = (x, y, count, int(busy_us * 1000), stamps, STAMPS_MAX)
        types = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong,
            ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_ulonglong,
        )  # fmt: skip
        self._gpu.call(
            "cuLaunchKernel", self._affine, blocks, 1, 1, THREADS, 1, 1, 0, int(stream),
            (values, types), 0,
        )  # fmt: skip

    def busy(self, stream: Any, microseconds: float) -> None:
        """Keep one multiprocessor busy, and what comes after on the stream waiting."""
        self.affine(stream, 0, 0, 0, busy_us=microseconds)

    def trap(self, stream: Any) -> None:
        self._gpu.call("cuLaunchKernel", self._trap, 1, 1, 1, 1, 1, 1, 0, int(stream), ((), ()), 0)

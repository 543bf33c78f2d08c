"""NVRTC without a compiler: a "cubin" is the source, behind a mark.

The real one is given the source in tests/contract/gpu_check/test_kernels.py, where it is installed.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

is_missing = False
"""As where libnvrtc is not installed."""


class nvrtcResult(IntEnum):
    NVRTC_SUCCESS = 0
    NVRTC_ERROR_COMPILATION = 6


class Program:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.code = b""


def nvrtcCreateProgram(
    src: bytes, name: bytes, numHeaders: int, headers: list[bytes], includeNames: list[bytes]
) -> Any:
    if is_missing:
        raise RuntimeError('Failure finding "libnvrtc.so"')
    return nvrtcResult.NVRTC_SUCCESS, Program(src)


def nvrtcCompileProgram(prog: Program, numOptions: int, options: list[bytes]) -> Any:
    if numOptions != len(options) or b"__global__" not in prog.source:
        return (nvrtcResult.NVRTC_ERROR_COMPILATION,)
    prog.code = b"fake " + prog.source
    return (nvrtcResult.NVRTC_SUCCESS,)


def nvrtcGetCUBINSize(prog: Program) -> Any:
    return nvrtcResult.NVRTC_SUCCESS, len(prog.code)


def nvrtcGetCUBIN(prog: Program, cubin: bytes) -> Any:
    """Into the bytes that it is given, as the real one."""
    ctypes.memmove(ctypes.c_char_p(cubin), prog.code, len(prog.code))
    return (nvrtcResult.NVRTC_SUCCESS,)


def nvrtcGetProgramLogSize(prog: Program) -> Any:
    return nvrtcResult.NVRTC_SUCCESS, 8


def nvrtcGetProgramLog(prog: Program, log: bytes) -> Any:
    ctypes.memmove(ctypes.c_char_p(log), b"no code\0", 8)
    return (nvrtcResult.NVRTC_SUCCESS,)


def nvrtcDestroyProgram(prog: Program) -> Any:
    return (nvrtcResult.NVRTC_SUCCESS,)

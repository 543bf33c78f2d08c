"""The kernels: their source by the real NVRTC, where it is installed, and kernels.ptx beside it."""

from __future__ import annotations

import hashlib
import re

import pytest

from gpu_checks import kernels
from gpu_checks.gpu import CudaFailed
from support.real_packages import real_package

real_package("cuda.bindings.nvrtc", "cuda-bindings")
NAMES = [b"affine", b"trap_now"]


def compiled(option: str) -> bytes:
    try:
        return kernels.compiled(option.encode())
    except kernels.NoCompiler:
        pytest.skip(
            "no NVRTC: pip install nvidia-cuda-nvrtc (60 MB), and LD_LIBRARY_PATH to its lib"
        )


def entries(ptx: bytes) -> list[bytes]:
    return re.findall(rb"\.entry (\w+)", ptx)


def parameters(ptx: bytes) -> list[tuple[bytes, bytes]]:
    return re.findall(rb"\.param \.(\w+) (\w+)", ptx)


def instructions(ptx: bytes) -> list[bytes]:
    """Without comments, and without what says which compiler it was."""
    lines = (line.split(b"//")[0].strip() for line in ptx.strip(b"\0").splitlines())
    return [line for line in lines if line and not line.startswith(b".version")]


def test_the_ptx_is_for_old_drivers_and_has_what_is_launched() -> None:
    ptx = kernels.PTX.read_bytes()
    assert ptx.isascii()
    assert b"\n.version 6.4\n.target sm_75\n" in b"\n" + ptx
    assert entries(ptx) == NAMES
    assert parameters(ptx) == [(b"u64", b"affine_param_%d" % number) for number in range(6)]


def test_the_ptx_is_not_of_an_older_source() -> None:
    """Whoever edits kernels.cu makes kernels.ptx again, by NVRTC, and writes the new sum."""
    digest = hashlib.sha256(kernels.SOURCE.read_bytes()).hexdigest()
    first = kernels.PTX.read_text().splitlines()[0]
    assert first == f"// Of kernels.cu with the SHA-256 {digest}"


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_the_source_is_compiled(capability: int) -> None:
    assert compiled(f"--gpu-architecture=sm_{capability}").startswith(b"\x7fELF")


def test_the_ptx_is_that_of_the_source() -> None:
    ptx = compiled("--gpu-architecture=compute_75")
    assert instructions(ptx) == instructions(kernels.PTX.read_bytes())


def test_what_does_not_compile_is_told() -> None:
    compiled("--gpu-architecture=sm_80")
    with pytest.raises(CudaFailed, match="sm_9999"):
        kernels.compiled(b"--gpu-architecture=sm_9999")

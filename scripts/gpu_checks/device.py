"""Whether there is a GPU at all, and which; the first step, on which all others depend."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from gpu_checks import rows
from gpu_checks.rows import Row
from gpu_checks.steps import Options

RUNTIME: Final = "cuda.bindings.runtime"
NEEDED: Final = {RUNTIME: "cuda-bindings", "numpy": "numpy"}
"""Modules without which nothing can be looked at, and the packages that have them."""
_DRIVER_MISSING: Final = (34, 35)


def look(options: Options) -> Iterator[Row]:
    for module, package in NEEDED.items():
        try:
            import_module(module)
        except ImportError as missing:
            reason = f"{missing}: pip install {package}, or give its wheel with --wheels DIR"
            yield rows.failed(module, reason)
            return
    runtime = import_module(RUNTIME)
    error, count = runtime.cudaGetDeviceCount()
    if int(error) or not count:
        what = "no NVIDIA driver" if int(error) in _DRIVER_MISSING else "no GPU that CUDA sees"
        yield rows.skipped("GPU", f"{what} ({error.name})")
        return
    from gpu_checks.gpu import Gpu  # which needs NumPy

    gpu = Gpu()
    name = gpu.call("cuDeviceGetName", 128, 0)
    free, total = gpu.call("cudaMemGetInfo")
    driver = gpu.call("cudaDriverGetVersion")
    own = gpu.call("cudaRuntimeGetVersion")
    card = bytes(name).split(b"\0")[0].decode(errors="replace")
    text = f"{card}, sm_{gpu.capability()}, {total >> 20} MiB ({free >> 20} free), {count} seen"
    yield rows.holds("GPU", True, text)
    packages = ", ".join(_with_version(name) for name in ("cuda-bindings", "numpy"))
    text = f"CUDA {own}, driver for {driver}, Python {platform.python_version()}, {packages}"
    yield rows.holds("versions", driver >= own // 1000 * 1000, text, reason="the driver is too old")


def _with_version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} (not as a package)"

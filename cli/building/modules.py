"""Which TensorRT there is: the full one, or TensorRT-RTX, which builds without a GPU too.

Nothing is imported before it is asked for: the libraries take seconds and hundreds of megabytes.
Under each name the package of thin imports is tried first, then the bindings it stands for.
"""

from __future__ import annotations

import ctypes
import importlib
from types import ModuleType
from typing import Final, NamedTuple

from naiad.cli.failure import CommandFailed
from naiad.config.backends import tensorrt_imports

TENSORRT: Final = "tensorrt"
TENSORRT_RTX: Final = "tensorrt_rtx"
AUTO: Final = "auto"

MODULES: Final = {name: tensorrt_imports(name) for name in (TENSORRT, TENSORRT_RTX)}
INSTALL: Final = {
    TENSORRT: 'pip install "naiad[tensorrt]"',
    TENSORRT_RTX: 'pip install "naiad[rtx]"',
}

_DRIVER: Final = "libcuda.so.1"
_CUDA_SUCCESS: Final = 0


class Toolkit(NamedTuple):
    """A TensorRT that was imported. `name` is `tensorrt` or `tensorrt_rtx`."""

    name: str
    module: ModuleType

    @property
    def is_rtx(self) -> bool:
        return self.name == TENSORRT_RTX

    def __str__(self) -> str:
        return f"{self.name} {self.module.__version__}"


def find_toolkit(wanted: str) -> Toolkit:
    """Import the TensorRT that was asked for; with "auto" the full one where it can build.

    Raises CommandFailed with the command that installs what is missing.
    """
    has_gpu = cuda_device_count() > 0
    if wanted == TENSORRT and not has_gpu:
        raise CommandFailed(
            f"tensorrt builds for the GPU of the machine it runs on, and there is none here "
            f"({_DRIVER} finds no device); build where there is one, or with --runtime "
            f"{TENSORRT_RTX}, which needs none"
        )
    names = [wanted]
    if wanted == AUTO:
        names = [TENSORRT, TENSORRT_RTX] if has_gpu else [TENSORRT_RTX]
    faults = []
    for name in names:
        found = _import(name)
        if isinstance(found, ModuleType):
            return Toolkit(name, found)
        faults.append(found)
    raise CommandFailed("; ".join(faults))


def _import(name: str) -> ModuleType | str:
    """The module, or why there is none and what to do."""
    for module in MODULES[name]:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError) as fault:
            return f"{name} is installed but cannot be imported ({fault}); {INSTALL[name]}"
    return f"{name} is not installed; {INSTALL[name]}"


def cuda_device_count() -> int:
    """How many GPUs the driver shows to this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != _CUDA_SUCCESS:
        return 0
    if driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_SUCCESS:
        return 0
    return count.value

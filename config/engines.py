"""What the installed engines can do, told by their files: importing them costs seconds and memory.

Looks at the Python environment, decides nothing.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from naiad.config.surroundings import CPU_ONLY

ONNXRUNTIME_CUDA: Final = "capi/libonnxruntime_providers_cuda.so"
"""There in onnxruntime-gpu, and not in onnxruntime."""


def cpu_backends() -> tuple[str, ...]:
    """Backends that run nothing on a GPU as they are installed here."""
    found = list(CPU_ONLY.cpu_backends)
    if not _has_file("onnxruntime", ONNXRUNTIME_CUDA):
        found.append("onnxruntime")
    return tuple(found)


def _has_file(package: str, path: str) -> bool:
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    folders = spec.submodule_search_locations if spec is not None else None
    return any(Path(folder, path).exists() for folder in folders or ())

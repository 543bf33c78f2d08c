"""What is known of backends by name: platforms, file names, and the way out where there is none.

A backend of another package needs no line here; its model names it with `backend` and, where it is
not the first file that comes to mind, `default_model_filename`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

ENTRY_POINT_GROUP: Final = "naiad.backends"
ENSEMBLE: Final = "ensemble"

PLATFORM_BACKEND: Final[Mapping[str, str]] = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
}
"""Triton's platforms; "ensemble" is one too but has no backend."""

BACKEND_PLATFORM: Final[Mapping[str, str]] = {
    "tensorrt": "tensorrt_plan",
    "onnxruntime": "onnxruntime_onnx",
    "pytorch": "pytorch_libtorch",
}
"""The platform a config query shows when the model named only the backend."""

DEFAULT_FILENAME: Final[Mapping[str, str]] = {
    "tensorrt": "model.plan",
    "onnxruntime": "model.onnx",
    "openvino": "model.xml",
    "pytorch": "model.pt",
    "python": "model.py",
}

WELL_KNOWN_FILES: Final[tuple[tuple[str, str], ...]] = (
    ("model.savedmodel", "tensorflow"),
    ("model.graphdef", "tensorflow"),
    ("model.plan", "tensorrt"),
    ("model.onnx", "onnxruntime"),
    ("model.xml", "openvino"),
    ("model.pt", "pytorch"),
    ("model.pt2", "pytorch"),
    ("model.py", "python"),
)
"""What to look for in a version directory when nothing names the backend, in Triton's order."""

KNOWN_BACKENDS: Final = frozenset(PLATFORM_BACKEND.values()) | {
    "openvino",
    "python",
    "identity",
}
NOT_IN_THIS_RELEASE: Final = frozenset({"tensorflow", "pytorch", "openvino"})
"""Known by name and not shipped; a package of somebody else may still bring one."""
SHIPPED_BACKENDS: Final = KNOWN_BACKENDS - NOT_IN_THIS_RELEASE
TELLS_NOTHING: Final = frozenset({"identity"})
"""Backends that complete no config: what is left out there, nobody fills in."""
GPU_ONLY_BACKENDS: Final = frozenset({"tensorrt"})
TENSORRT_MODULES: Final = ("tensorrt", "tensorrt_lean", "tensorrt_rtx")
"""Python modules that the backend "tensorrt" runs engines with; one is enough. Each is a thin
package over its bindings, which may be there alone (see tensorrt_imports)."""
TENSORRT_DATATYPE: Final = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
    "UINT8": "UINT8",
}
"""TensorRT's DataType by name: what a request can carry. (Its own nptype() raises for BF16.)"""
SHAPE_TENSOR_BACKENDS: Final = frozenset({"tensorrt"})
"""Backends that give the engine inputs to compute shapes from."""

_SUFFIX_BACKEND: Final[Mapping[str, str]] = {
    ".plan": "tensorrt",
    ".onnx": "onnxruntime",
    ".pt": "pytorch",
    ".py": "python",
}


def filename_backend(filename: str) -> str:
    """The backend a default_model_filename such as "encoder.onnx" speaks of, or empty."""
    for suffix, backend in _SUFFIX_BACKEND.items():
        if filename.endswith(suffix):
            return backend
    return ""


def found_backend(files: Collection[str], directory_name: str) -> tuple[str, str]:
    """(backend, the file that tells it) for a model that names none; ("", "") when none does.

    As Triton does: well-known files of a version directory first, then a model directory called
    `anything.<backend>`.
    """
    for filename, backend in WELL_KNOWN_FILES:
        if filename in files:
            return backend, filename
    suffix = directory_name.rpartition(".")[2]
    return (suffix, "") if suffix in KNOWN_BACKENDS and suffix != directory_name else ("", "")


def tensorrt_imports(name: str) -> tuple[str, str]:
    """What to import for one of TENSORRT_MODULES, the first that is there."""
    return name, f"{name}_bindings"


def way_out(backend: str, devices: str) -> str:
    """One sentence on a known backend that is not installed; empty for an unknown one."""
    if backend == "tensorflow":
        return (
            'backend "tensorflow" is not in any planned release; convert the model with tf2onnx '
            "(python -m tf2onnx.convert --saved-model DIR --output model.onnx) and set backend: "
            '"onnxruntime", or load it in a python model (model.py)'
        )
    if backend == "pytorch":
        return (
            'backend "pytorch" is not in this release; export the model with torch.onnx.export '
            'and set backend: "onnxruntime", or load it in a python model (model.py)'
        )
    if backend == "tensorrt":
        return (
            'backend "tensorrt" is not installed; it needs an NVIDIA GPU (visible devices: '
            f'{devices}) and pip install "naiad[tensorrt]" (for plans of TensorRT-RTX '
            '"naiad[cuda,rtx]"); or serve the ONNX file the engine was built from with backend: '
            '"onnxruntime"'
        )
    if backend == "openvino":
        return (
            'backend "openvino" is not in this release; serve the ONNX file the model was '
            'converted from with backend: "onnxruntime"'
        )
    if backend == "onnxruntime":
        return (
            'backend "onnxruntime" is not installed; install the extra: pip install "naiad[onnx]"'
        )
    return ""

"""The fake CUDA runtime and the backend's calls, held to the real cuda.bindings.

It needs the package, and neither a GPU nor a driver.
"""

import ast
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from naiad.protocol.errors import Code, ModelError
from naiad.shm.cuda.errors import STICKY_ERRORS
from naiad.worker.backends.tensorrt import cuda as calls
from naiad.worker.backends.tensorrt import streams
from support import fake_cudart
from support.real_packages import real_package

real: Any = real_package("cuda.bindings.runtime", "cuda-bindings")

FUNCTIONS = [
    name
    for name, value in vars(fake_cudart).items()
    if name.startswith("cuda") and inspect.isfunction(value)
]
ENUMERATIONS = ["cudaError_t", "cudaMemcpyKind", "cudaDeviceAttr", "cudaStreamCaptureMode"]
CONSTANTS = [
    "cudaStreamNonBlocking",
    "cudaEventDefault",
    "cudaEventDisableTiming",
    "cudaHostAllocDefault",
    "cudaHostRegisterPortable",
    "cudaHostRegisterReadOnly",
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_parameters_of_the_real_ones(name: str) -> None:
    own = list(inspect.signature(getattr(fake_cudart, name)).parameters)
    assert own == list(inspect.signature(getattr(real, name)).parameters)


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumerations_have_the_real_numbers(name: str) -> None:
    found = getattr(real, name)
    for member in getattr(fake_cudart, name):
        assert int(getattr(found, member.name)) == member


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_the_real_ones(name: str) -> None:
    assert int(getattr(real, name)) == getattr(fake_cudart, name)


def test_sticky_errors_are_errors() -> None:
    known = {int(error) for error in real.cudaError_t}
    assert known >= STICKY_ERRORS
    assert STICKY_ERRORS == fake_cudart.STICKY


def test_errors_have_names_and_words() -> None:
    error, words = real.cudaGetErrorString(real.cudaError_t.cudaErrorIllegalAddress)
    assert int(error) == 0
    assert isinstance(words, bytes)
    assert real.cudaError_t(700).name == "cudaErrorIllegalAddress"
    assert real.cudaError_t(700) == 700


def test_whatever_the_backend_calls_is_in_both() -> None:
    used = used_names(calls) | used_names(streams)
    assert len(used) > 30
    assert [name for name in used if not hasattr(real, name)] == []
    assert [name for name in used if not hasattr(fake_cudart, name)] == []


def used_names(module: ModuleType) -> set[str]:
    """Attributes and texts of a module's source that are names of CUDA's runtime."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found |= {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    plain = {name for name in found if name.startswith("cuda") and name.isidentifier()}
    return {name for name in plain if name[4:5].isupper() and not hasattr_of_enumeration(name)}


def hasattr_of_enumeration(name: str) -> bool:
    return any(hasattr(getattr(fake_cudart, kind), name) for kind in ENUMERATIONS)


def test_without_a_driver_the_real_probe_is_a_clean_error() -> None:
    error, _ = real.cudaGetDeviceCount()
    if int(error) == 0:
        pytest.skip("this machine has a GPU")
    with pytest.raises(ModelError, match="a TensorRT engine needs an NVIDIA GPU") as caught:
        calls.Cuda(real, "model", 0)
    assert caught.value.code is Code.LOAD_FAILED

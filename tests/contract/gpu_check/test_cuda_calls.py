"""Every call of gpu_check to CUDA, and the fakes it is tested over, held to the real cuda.bindings.

The calls are read from the sources, so that one which no test makes is held, too.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import gpu_checks
from support import fake_gpu, fake_gpu_driver, fake_gpu_nvrtc
from support.real_packages import real_package

runtime: Any = real_package("cuda.bindings.runtime", "cuda-bindings")
driver: Any = real_package("cuda.bindings.driver", "cuda-bindings")
nvrtc: Any = real_package("cuda.bindings.nvrtc", "cuda-bindings")

SOURCES = sorted(Path(gpu_checks.__path__[0]).glob("*.py"))


class Call(NamedTuple):
    name: str
    arguments: int
    where: str


def module_of(name: str) -> Any:
    return runtime if name.startswith("cuda") else nvrtc if name.startswith("nvrtc") else driver


def is_cuda(name: str) -> bool:
    return any(name.startswith(p) and name[len(p) :][:1].isupper() for p in ("cuda", "cu", "nvrtc"))


def found_calls() -> list[Call]:
    """Such as `gpu.call("cudaMalloc", size)` and `nvrtc.nvrtcGetPTX(program, code)`."""
    calls = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            where = f"{path.name}:{node.lineno}"
            assert not node.keywords or not is_cuda(node.func.attr), where
            if is_cuda(node.func.attr) and not node.func.attr.endswith("_t"):
                calls.append(Call(node.func.attr, len(node.args), where))
            elif node.func.attr == "call":
                name = node.args[0]
                if isinstance(name, ast.Name):  # Gpu.call itself
                    continue
                assert isinstance(name, ast.Constant), where
                calls.append(Call(str(name.value), len(node.args) - 1, where))
    return calls


CALLS = found_calls()


def test_they_are_found() -> None:
    assert len({call.name for call in CALLS}) > 40


def test_names_are_written_out_in_calls_alone() -> None:
    """What is neither called nor a constant of the real package would be held to nothing."""
    unknown = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and is_cuda(node.attr):
                enumerations = ("cudaDeviceAttr", "cudaMemcpyKind", "cudaStreamCaptureMode")
                owners = [module_of(node.attr), *(getattr(runtime, e) for e in enumerations)]
                if not any(hasattr(owner, node.attr) for owner in owners):
                    unknown.append(f"{path.name}:{node.lineno}: {node.attr}")
    assert unknown == []


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.where}-{call.name}")
def test_the_real_function_takes_so_many_arguments(call: Call) -> None:
    real = inspect.signature(getattr(module_of(call.name), call.name))
    real.bind(*range(call.arguments))


FAKES = [
    (fake, name)
    for fake in (fake_gpu, fake_gpu_driver, fake_gpu_nvrtc)
    for name, value in vars(fake).items()
    if is_cuda(name) and inspect.isfunction(value)
]


@pytest.mark.parametrize(("fake", "name"), FAKES, ids=lambda one: str(one))
def test_fakes_have_the_parameters_of_the_real_ones(fake: Any, name: str) -> None:
    own = list(inspect.signature(getattr(fake, name)).parameters)
    assert own == list(inspect.signature(getattr(module_of(name), name)).parameters)


NOTHING = [
    lambda: runtime.cudaStreamCreateWithPriority(runtime.cudaStreamNonBlocking, 0),
    lambda: runtime.cudaMemcpyAsync(
        1, 2, 3, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, runtime.cudaStream_t(5)
    ),
    lambda: runtime.cudaMemsetAsync(1, 0, 5, runtime.cudaStream_t(4)),
    lambda: runtime.cudaFree(0),
    lambda: runtime.cudaHostAlloc(100, runtime.cudaHostAllocDefault),
    lambda: runtime.cudaHostRegister(4096, 4096, runtime.cudaHostRegisterPortable),
    lambda: runtime.cudaEventCreateWithFlags(
        runtime.cudaEventDisableTiming | runtime.cudaEventInterprocess
    ),
    lambda: runtime.cudaEventElapsedTime(runtime.cudaEvent_t(0), runtime.cudaEvent_t(0)),
    lambda: runtime.cudaStreamWaitEvent(runtime.cudaStream_t(4), runtime.cudaEvent_t(3), 0),
    lambda: runtime.cudaIpcOpenMemHandle(
        runtime.cudaIpcMemHandle_t(), runtime.cudaIpcMemLazyEnablePeerAccess
    ),
    lambda: runtime.cudaIpcOpenEventHandle(runtime.cudaIpcEventHandle_t()),
    lambda: runtime.cudaIpcCloseMemHandle(4096),
    lambda: runtime.cudaStreamBeginCapture(
        runtime.cudaStream_t(4), runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    ),
    lambda: runtime.cudaGraphInstantiate(runtime.cudaGraph_t(0), 0),
    lambda: runtime.cudaGraphLaunch(runtime.cudaGraphExec_t(0), runtime.cudaStream_t(4)),
    lambda: runtime.cudaDeviceGetAttribute(
        runtime.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor, 0
    ),
]


@pytest.mark.parametrize("call", NOTHING)
def test_the_real_functions_take_arguments_of_such_types(call: Callable[[], Any]) -> None:
    """Types are converted before anything is looked for: without a driver that is an answer."""
    error, *_ = call()
    assert isinstance(error, runtime.cudaError_t)


def test_the_real_launch_takes_parameters_as_ours_are() -> None:
    """Without a driver it is the driver that is missed, after the parameters were converted."""
    types = (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong,
        ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_ulonglong,
    )  # fmt: skip
    for parameters in (((1, 0, 3, 4, 0, 6), types), ((), ())):
        launched = _answer(parameters)
        assert isinstance(launched, tuple | RuntimeError), launched
    assert isinstance(_answer(((1,), (int,))), TypeError)


def _answer(parameters: Any) -> Any:
    try:
        return driver.cuLaunchKernel(driver.CUfunction(0), 1, 1, 1, 1, 1, 1, 0, 5, parameters, 0)
    except (RuntimeError, TypeError) as error:
        return error


def test_handles_travel_as_bytes() -> None:
    from gpu_checks.between_processes import HANDLE_BYTES, handle_bytes, handle_from

    for kind in (runtime.cudaIpcMemHandle_t, runtime.cudaIpcEventHandle_t):
        text = bytes(range(HANDLE_BYTES)).hex()
        assert handle_bytes(handle_from(kind, text)) == text

"""The fakes of CUDA and naiad's calls, held to the real cuda.bindings: names, parameters, how many
values are returned, enumerations and constants.

It needs the package, and neither a GPU nor a driver.
"""

import enum
import inspect
import re
from types import ModuleType
from typing import Any

import pytest

from naiad.protocol.errors import Code, ModelError
from naiad.shm.cuda import errors
from naiad.worker.backends.tensorrt import cuda as calls
from naiad.worker.backends.tensorrt import streams
from support import (
    fake_cuda_driver,
    fake_cuda_ipc,
    fake_cudart,
    fake_gpu,
    fake_gpu_driver,
    fake_gpu_nvrtc,
)
from support.real_api import documented, files, lengths, named, owner_of
from support.real_packages import real_package

runtime: Any = real_package("cuda.bindings.runtime", "cuda-bindings")
driver: Any = real_package("cuda.bindings.driver", "cuda-bindings")
nvrtc: Any = real_package("cuda.bindings.nvrtc", "cuda-bindings")

MODULES: list[tuple[ModuleType, Any]] = [
    (fake_cudart, runtime),
    (fake_cuda_ipc, runtime),
    (fake_gpu, runtime),
    (fake_cuda_driver, driver),
    (fake_gpu_driver, driver),
    (fake_gpu_nvrtc, nvrtc),
]
OURS = re.compile(r"(cuda|cu|nvrtc|CU)[A-Z]\w*")
FUNCTIONS = [
    pytest.param(fake, real, name, id=f"{fake.__name__.partition('.')[2]}-{name}")
    for fake, real in MODULES
    for name, value in vars(fake).items()
    if inspect.isfunction(value) and OURS.fullmatch(name)
]
ENUMERATIONS = [
    pytest.param(value, real, id=name)
    for fake, real in MODULES
    for name, value in vars(fake).items()
    if inspect.isclass(value)
    and issubclass(value, enum.IntEnum)
    and value.__module__ == fake.__name__
]
CONSTANTS = [
    pytest.param(fake, real, name, id=name)
    for fake, real in MODULES
    for name, value in vars(fake).items()
    if OURS.fullmatch(name) and isinstance(value, int)
]
KINDS = ("cudaError_t", "cudaMemcpyKind", "cudaDeviceAttr", "cudaStreamCaptureMode")


def test_they_are_found() -> None:
    assert (len(FUNCTIONS) > 50, len(ENUMERATIONS) > 5, len(CONSTANTS) > 7) == (True, True, True)


@pytest.mark.parametrize(("fake", "real", "name"), FUNCTIONS)
def test_functions_have_the_parameters_of_the_real_ones(fake: Any, real: Any, name: str) -> None:
    own = list(inspect.signature(getattr(fake, name)).parameters)
    assert own == list(inspect.signature(getattr(real, name)).parameters)


@pytest.mark.parametrize(("fake", "real", "name"), FUNCTIONS)
def test_functions_return_as_many_values_as_the_real_ones(fake: Any, real: Any, name: str) -> None:
    function = getattr(fake, name)
    want = 1 if name == "cudaGetErrorString" else len(documented(getattr(real, name)))
    if hasattr(function, "value_count"):  # its tuples are made for it
        assert function.value_count == want
    elif lengths(function):
        assert lengths(function) == {1 + want}
    else:  # it returns what another returns, or raises
        assert want == 0 or name in WRAPPERS


WRAPPERS = {"cudaEventElapsedTime"}


@pytest.mark.parametrize(("fake", "real"), ENUMERATIONS)
def test_enumerations_have_the_real_numbers(fake: Any, real: Any) -> None:
    found = getattr(real, fake.__name__)
    assert {one.name: one.value for one in fake} == {
        one.name: int(getattr(found, one.name)) for one in fake
    }


@pytest.mark.parametrize(("fake", "real", "name"), CONSTANTS)
def test_constants_are_the_real_ones(fake: Any, real: Any, name: str) -> None:
    assert int(getattr(real, name)) == getattr(fake, name)


PAIRS = {
    "cudaMemGetInfo": ["free", "total"],
    "cudaDeviceGetStreamPriorityRange": ["leastPriority", "greatestPriority"],
}


@pytest.mark.parametrize("name", PAIRS)
def test_values_come_in_the_real_order(name: str) -> None:
    assert [one for one, _ in documented(getattr(runtime, name))] == PAIRS[name]
    several = {
        name
        for fake, real in MODULES
        for name, value in vars(fake).items()
        if getattr(value, "value_count", 0) > 1
    }
    assert several == set(PAIRS)


def test_the_values_of_the_fake_come_in_that_order() -> None:
    device = fake_cudart.reset()
    _, address = fake_cudart.cudaMalloc(1000)
    assert fake_cudart.cudaMemGetInfo() == (0, device.total - 1000, device.total)
    fake_cudart.cudaFree(address)
    assert fake_cudart.cudaMemGetInfo() == (0, device.total, device.total)
    _, least, greatest = fake_cudart.cudaDeviceGetStreamPriorityRange()
    assert least > greatest, "the smaller number comes first"
    assert "lower numbers imply" in runtime.cudaDeviceGetStreamPriorityRange.__doc__.replace(
        "\n", " "
    )
    device.close()


def test_times_are_in_milliseconds() -> None:
    assert re.search(
        r"Time between `start` and `end` in\s+ms", runtime.cudaEventElapsedTime.__doc__
    )
    device = fake_cudart.reset()
    (_, start), (_, end) = (fake_cudart.cudaEventCreateWithFlags(0) for _ in range(2))
    start.done.at_s, end.done.at_s = 5.0, 7.5
    assert fake_cudart.cudaEventElapsedTime(start, end) == (0, 2500.0)
    device.close()


# --- What naiad uses -----------------------------------------------------------------------------


def test_whatever_the_backend_calls_is_in_both() -> None:
    used = named(files("worker"), "cuda")
    assert len(used) > 40
    for module in (runtime, Fakes):
        assert {n: w for n, w in used.items() if owner_of(module, n, KINDS) is None} == {}


class Fakes:
    """What the worker's own calls are tested with."""


for _name in dir(fake_cudart):
    setattr(Fakes, _name, getattr(fake_cudart, _name))


def test_whatever_is_called_for_shared_memory_is_in_both() -> None:
    used = named(files("shm", "client"), "cuda")
    assert len(used) > 20
    for module in (runtime, fake_cuda_ipc):
        assert {n: w for n, w in used.items() if owner_of(module, n, KINDS) is None} == {}


def test_whatever_is_called_of_the_driver_is_there() -> None:
    """But by ctypes: gpu_health.py's calls are test_gpu_health's."""
    used = named([path for path in files() if path.name != "gpu_health.py"], "cu")
    assert set(used) >= {"cuMemGetAddressRange", "cuInit", "cuDeviceGetUuid"}
    later = {"cuDeviceGetUuid_v2"}  # of CUDA 12, where it is there; in 13 the other one is the same
    ours = {
        name: where
        for name, where in used.items()
        if "modules.py" not in where and name not in later  # by ctypes
    }
    assert {n: w for n, w in ours.items() if not hasattr(driver, n)} == {}


def test_numbers_that_are_written_out_are_the_real_ones() -> None:
    real = runtime.cudaError_t
    assert calls._SUCCESS == streams._SUCCESS == real.cudaSuccess
    assert real.cudaErrorMemoryAllocation == calls._OUT_OF_MEMORY
    assert real.cudaErrorNotReady == streams._NOT_READY == errors.NOT_READY_ERROR
    assert real.cudaErrorUnknown == errors.UNKNOWN_ERROR
    assert {real(code).name for code in errors.NO_DRIVER_ERRORS} == {
        "cudaErrorStubLibrary",
        "cudaErrorInsufficientDriver",
    }


def test_sticky_errors_are_errors_and_the_same_everywhere() -> None:
    known = {int(error) for error in runtime.cudaError_t}
    assert known >= errors.STICKY_ERRORS
    assert errors.STICKY_ERRORS == fake_cudart.STICKY


def test_errors_have_names_and_words() -> None:
    error, words = runtime.cudaGetErrorString(runtime.cudaError_t.cudaErrorIllegalAddress)
    assert int(error) == 0
    assert isinstance(words, bytes)
    assert runtime.cudaError_t(700).name == "cudaErrorIllegalAddress"
    assert runtime.cudaError_t(700) == 700
    assert isinstance(fake_cudart.cudaGetErrorString(fake_cudart.cudaError_t(700))[1], bytes)


# --- Without a driver ------------------------------------------------------------------------


def test_without_a_driver_the_real_probe_is_a_clean_error() -> None:
    error, _ = runtime.cudaGetDeviceCount()
    if int(error) == 0:
        pytest.skip("this machine has a GPU")
    with pytest.raises(ModelError, match="a TensorRT engine needs an NVIDIA GPU") as caught:
        calls.Cuda(runtime, "model", 0)
    assert caught.value.code is Code.LOAD_FAILED


ANSWERS = {
    "cudaMalloc": (64,),
    "cudaFree": (4096,),
    "cudaMemGetInfo": (),
    "cudaHostAlloc": (64, 0),
    "cudaHostUnregister": (4096,),
    "cudaDeviceGetStreamPriorityRange": (),
    "cudaEventCreateWithFlags": (2,),
    "cudaGetLastError": (),
    "cudaGetDevice": (),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_fails_returns_as_many_values(name: str) -> None:
    """The real ones fail without a driver, and answer with a tuple of the same length."""
    if int(runtime.cudaGetDeviceCount()[0]) == 0:
        pytest.skip("this machine has a GPU")
    answer = getattr(runtime, name)(*ANSWERS[name])
    assert isinstance(answer[0], runtime.cudaError_t)
    assert len(answer) == 1 + len(documented(getattr(runtime, name)))
    assert answer[1:] == (None,) * len(answer[1:])

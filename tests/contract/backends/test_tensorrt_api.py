"""The fake TensorRT, held to the real package: its classes, methods, parameters and enumerations.

It needs the lean runtime's packages (45 MB) or TensorRT-RTX's (96 MB), and no GPU. Nothing here
makes a Runtime of the lean one: without a GPU its first use crashes the process.
"""

import enum
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from naiad.protocol.errors import ModelError
from naiad.worker.backends.tensorrt.cuda import Cuda
from naiad.worker.backends.tensorrt.memory import output_allocator
from naiad.worker.backends.tensorrt.runtime import LastWords, LoadedEngine
from support import fake_cudart, fake_trt
from support.real_packages import real_package

PACKAGES = {
    "tensorrt_lean_bindings.tensorrt_lean": "tensorrt-lean-cu13-libs tensorrt-lean-cu13-bindings",
    "tensorrt_rtx_bindings.tensorrt_rtx": "tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings",
}


@pytest.fixture(scope="module", params=PACKAGES)
def bindings(request: pytest.FixtureRequest) -> Any:
    return real_package(request.param, PACKAGES[request.param])


CLASSES = ["Runtime", "ICudaEngine", "IExecutionContext", "ILogger", "IPluginRegistry"]
OWN = {"datatype", "outputs_of"}
"""Methods of the fake that the real classes do not have; fakes call them among themselves."""
METHODS = [
    (name, method)
    for name in CLASSES
    for method, value in vars(getattr(fake_trt, name)).items()
    if inspect.isfunction(value) and not method.startswith("_") and method not in OWN
]
ENUMERATIONS = [
    "DataType",
    "TensorIOMode",
    "TensorLocation",
    "ExecutionContextAllocationStrategy",
]

Parameters = list[tuple[str, bool]]
"""(name, whether it may be left out)"""


def real_signatures(method: Any) -> list[Parameters]:
    """The overloads of a method of a compiled class, from the first lines of its text."""
    text = method.__doc__
    lines = re.findall(rf"^(?:\d+\. )?{method.__name__}\((self: .*)\) -> ", text, re.MULTILINE)
    assert lines, text
    return [[_parameter(part) for part in split(line)[1:]] for line in lines]


def split(line: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth = [""], 0
    for letter in line:
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _parameter(text: str) -> tuple[str, bool]:
    return text.partition(":")[0], " = " in text


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_methods_have_the_parameters_of_the_real_ones(
    bindings: Any, name: str, method: str
) -> None:
    own = inspect.signature(getattr(getattr(fake_trt, name), method))
    parameters = list(own.parameters.values())[1:]
    shortest = [one.name for one in parameters if one.default is one.empty]
    longest = [one.name for one in parameters]
    found = real_signatures(getattr(getattr(bindings, name), method))
    names = [[parameter for parameter, _ in overload] for overload in found]
    required = [[parameter for parameter, optional in one if not optional] for one in found]
    assert longest in names
    assert shortest in required


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumerations_have_the_real_members(bindings: Any, name: str) -> None:
    fake: type[enum.IntEnum] = getattr(fake_trt, name)
    real = getattr(bindings, name).__members__
    for member in fake:
        assert int(real[member.name]) == member
        assert real[member.name].name == member.name


def test_severities_have_the_real_members(bindings: Any) -> None:
    real = bindings.ILogger.Severity.__members__
    assert [int(real[one.name]) for one in fake_trt.ILogger.Severity] == [0, 1, 2, 3, 4]


def test_attributes_are_the_real_ones(bindings: Any) -> None:
    assert callable(bindings.get_plugin_registry)
    for owner, names in {
        "Runtime": ["engine_host_code_allowed"],
        "ICudaEngine": ["num_io_tensors", "num_optimization_profiles"],
        "IExecutionContext": ["active_optimization_profile", "engine"],
    }.items():
        assert [name for name in names if not hasattr(getattr(bindings, owner), name)] == []


def test_the_keyword_names_of_profile_values_are_still_interchanged(bindings: Any) -> None:
    """The backend passes them by position; when this fails, it may as well say their names."""
    assert "name: typing.SupportsInt, profile_index: str" in (
        bindings.ICudaEngine.get_tensor_profile_values.__doc__
    )


def test_output_allocators_are_asked_as_the_backend_expects(bindings: Any) -> None:
    text = bindings.IOutputAllocator.__doc__
    assert "def reallocate_output(self, tensor_name, memory, size, alignment)" in text
    assert "def reallocate_output_async(self, tensor_name, memory, size, alignment, stream)" in text
    assert "def notify_shape(self, tensor_name, shape)" in text


def test_the_lean_runtime_cannot_name_formats(bindings: Any) -> None:
    assert hasattr(bindings, "TensorFormat") != bindings.__name__.endswith("lean")
    assert "Row major linear FP32 format" in bindings.ICudaEngine.get_tensor_format_desc.__doc__


def test_a_logger_of_ours_is_called_by_the_real_base(bindings: Any) -> None:
    words = LastWords(bindings)
    words.logger.log(bindings.ILogger.Severity.ERROR, "first\n line")
    words.logger.log(bindings.ILogger.Severity.INFO, "nothing")
    assert isinstance(words.logger, bindings.ILogger)
    assert words.take() == "first line"
    assert words.take() == "TensorRT logged no error"


def test_an_allocator_of_ours_is_one_of_the_real_kind(bindings: Any) -> None:
    allocator = output_allocator(bindings, lambda name, size: 4096 if size <= 1024 else 0)
    assert isinstance(allocator, bindings.IOutputAllocator)
    assert allocator.reallocate_output_async("y", 0, 1000, 256, 1) == 4096
    allocator.notify_shape("y", bindings.Dims([2, 3]))
    assert allocator.shape == (2, 3)


def test_what_the_real_rtx_runtime_refuses_is_told_in_its_words() -> None:
    """Of the three runtimes this one can be made, and asked, without a GPU."""
    rtx = real_package("tensorrt_rtx_bindings", "naiad[rtx]")
    device = fake_cudart.reset()
    cuda = Cuda(fake_cudart, "model", 0)
    with pytest.raises(ModelError) as caught:
        LoadedEngine(rtx, b"vtrt" + bytes(200), Path("model.plan"), cuda)
    device.close()
    text = caught.value.message
    assert text.startswith("unable to create TensorRT engine from model.plan: ")
    assert "TensorRT logged no error" not in text
    assert f"tensorrt_rtx_bindings {rtx.__version__}: check that the file is a plan" in text

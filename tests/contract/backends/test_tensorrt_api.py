"""The fake TensorRT, held to the real package: its classes, methods and their parameters.

It needs the lean runtime's packages (45 MB) or TensorRT-RTX's (96 MB), and no GPU. Nothing here
makes a Runtime of the lean one: without a GPU its first use crashes the process.
"""

import inspect
import re
from typing import Any

import pytest

from naiad.worker.backends.tensorrt.runtime import LastWords
from support import fake_trt
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


def test_the_bound_of_an_output_is_that_of_its_profile(bindings: Any) -> None:
    """Not of the shapes that are set: the fakes of it answer for the whole profile."""
    text = bindings.IExecutionContext.get_max_output_size.__doc__
    assert "upper bound" in text
    assert "in bytes, based on the current optimization profile.\n" in text
    assert "not yet set" in text
    assert "returns -1" in text


def test_the_keyword_names_of_profile_values_are_still_interchanged(bindings: Any) -> None:
    """The backend passes them by position; when this fails, it may as well say their names."""
    assert "name: typing.SupportsInt, profile_index: str" in (
        bindings.ICudaEngine.get_tensor_profile_values.__doc__
    )


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

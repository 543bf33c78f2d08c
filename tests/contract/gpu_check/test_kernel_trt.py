"""The kernel that stands for TensorRT, held to the real package's signatures, as the fake is."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gpu_checks import kernel_trt
from support import fake_trt

CLASSES = ["Runtime", "ICudaEngine", "IExecutionContext", "ILogger"]
METHODS = [
    (name, method)
    for name in CLASSES
    for method, value in vars(getattr(kernel_trt, name)).items()
    if inspect.isfunction(value) and not method.startswith("_") and method != "forget_stamps"
]
ENUMERATIONS = [
    "DataType", "TensorIOMode", "TensorLocation", "TensorFormat",
    "ExecutionContextAllocationStrategy",
]  # fmt: skip


def shape_of(owner: Any, method: str) -> list[tuple[str, bool]]:
    parameters = inspect.signature(getattr(owner, method)).parameters.values()
    return [(one.name, one.default is one.empty) for one in parameters]


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_methods_are_those_of_the_fake_that_is_held_to_the_real_ones(
    name: str, method: str
) -> None:
    """See contract/backends/test_tensorrt_api.py."""
    own, held = getattr(kernel_trt, name), getattr(fake_trt, name)
    assert shape_of(own, method) == shape_of(held, method)


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumerations_have_the_same_numbers(name: str) -> None:
    held = {one.name: int(one) for one in getattr(fake_trt, name)}
    assert {one.name: int(one) for one in getattr(kernel_trt, name)}.items() <= held.items()

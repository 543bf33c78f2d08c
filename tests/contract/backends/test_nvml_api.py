"""The fake NVML, and what config/nvml.py calls, held to the real nvidia-ml-py.

It needs the package, and neither a GPU nor a driver.
"""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from naiad.config import nvml
from support import fake_nvml
from support.real_packages import real_package

real: Any = real_package("pynvml", "nvidia-ml-py")

FUNCTIONS = [name for name in vars(fake_nvml) if name.startswith("nvml")]
CONSTANTS = [name for name in vars(fake_nvml) if name.startswith("NVML_")]
CALLED = {
    str(node.value)
    for node in ast.walk(ast.parse(Path(nvml.__file__).read_text()))
    if isinstance(node, ast.Constant) and str(node.value).startswith("nvml")
}


def test_every_call_is_one_of_the_real_module_and_of_the_fake() -> None:
    assert {name for name in CALLED if not hasattr(real, name)} == set()
    assert set(FUNCTIONS) == CALLED


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_parameters_of_the_real_ones(name: str) -> None:
    own = list(inspect.signature(getattr(fake_nvml, name)).parameters)
    assert own == list(inspect.signature(getattr(real, name)).parameters)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_the_real_ones(name: str) -> None:
    assert getattr(real, name) == getattr(fake_nvml, name)


@pytest.mark.parametrize(
    ("fake", "structure"),
    [
        (fake_nvml.Memory, "c_nvmlMemory_t"),
        (fake_nvml.Utilization, "c_nvmlUtilization_t"),
        (fake_nvml.Process, "c_nvmlProcessInfo_v3_t"),
    ],
)
def test_what_is_returned_has_the_real_fields(fake: Any, structure: str) -> None:
    known = {name for name, *_ in getattr(real, structure)._fields_}
    assert set(fake._fields) <= known


GIVEN: dict[str, Any] = {"handle": 0, "device": 0, "index": 0, "uuid": "GPU-a"}
FIGURES: dict[str, Any] = dict.fromkeys(
    ("total", "used", "utilization", "power", "power_limit", "energy"), 1
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_returned_is_of_the_real_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The real functions run over a library that agrees with everything and fills in nothing."""
    told = tmp_path / "nvml.json"
    fake_nvml.tell(told, fake_nvml.gpu("GPU-a", mig=["MIG-a"], processes={"7": 8}, **FIGURES))
    monkeypatch.setenv(fake_nvml.VARIABLE, str(told))
    monkeypatch.setattr(real, "_nvmlGetFunctionPointer", lambda _: lambda *arguments: 0)
    monkeypatch.setattr(real, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setattr(real, "_nvmlLib_refcount", 1)
    function = getattr(fake_nvml, name)
    asked = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty
    ]
    found = getattr(real, name)(*[GIVEN[one] for one in asked])
    handle = fake_nvml.Handle("GPU-a")
    own: Any = function(*[handle if one in ("handle", "device") else GIVEN[one] for one in asked])
    if isinstance(own, fake_nvml.Handle):
        assert type(found).__name__ == "LP_struct_c_nvmlDevice_t"
    elif hasattr(own, "_fields"):
        assert {type(getattr(found, field)) for field in own._fields} == {int}
    else:
        assert type(own) is type(found)
        if name == "nvmlDeviceGetMigMode":
            assert [type(one) for one in own] == [type(one) for one in found] == [int, int]


def test_errors_are_numbered() -> None:
    error = real.NVMLError(fake_nvml.NVML_ERROR_NOT_FOUND)
    assert (error.value, str(error)) == (6, str(fake_nvml.NVMLError(6)))


def test_without_a_driver_it_says_so() -> None:
    try:
        real.nvmlInit()
    except real.NVMLError as error:
        with pytest.raises(nvml.NvmlFault, match=f"nvmlInit: {error}"), nvml.Nvml():
            pass
    else:  # there is one: then it lists what it counts
        with nvml.Nvml() as session:
            assert len(session.gpus()) >= real.nvmlDeviceGetCount()

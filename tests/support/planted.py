"""Code that runs in every process of a server as it starts: how a test plants a fault there."""

from __future__ import annotations

import os
from pathlib import Path

from support import fake_cuda_ipc, fake_nvml

SOURCES = Path(__file__).resolve().parents[2] / "src"


def planted(folder: Path, code: str) -> dict[str, str]:
    """The environment for `serve`; methods can be replaced, as the sources are not compiled."""
    (folder / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(folder), str(SOURCES)])
    return {"PYTHONPATH": path, "NAIAD_COMPILED": "0"}


def plant_nvml(folder: Path, told: Path) -> dict[str, str]:
    """The environment in which `pynvml` is the fake that reads the file `told`."""
    folder.mkdir()
    (folder / "pynvml.py").write_text(
        "import sys\nfrom support import fake_nvml\nsys.modules[__name__] = fake_nvml\n"
    )
    path = os.pathsep.join([str(folder), str(SOURCES), str(SOURCES.parent / "tests")])
    return {"PYTHONPATH": path, fake_nvml.VARIABLE: str(told)}


def plant_cuda(folder: Path, shared: Path) -> dict[str, str]:
    """The environment in which CUDA is the fake one, whose device memory lies in `shared`."""
    bindings = folder / "cuda" / "bindings"
    bindings.mkdir(parents=True)
    for package in (bindings.parent, bindings):
        (package / "__init__.py").touch()
    for module, fake in (("runtime", "fake_cuda_ipc"), ("driver", "fake_cuda_driver")):
        (bindings / f"{module}.py").write_text(
            f"import sys\nfrom support import {fake}\nsys.modules[__name__] = {fake}\n"
        )
    shared.mkdir()
    path = os.pathsep.join([str(folder), str(SOURCES), str(SOURCES.parent / "tests")])
    return {"PYTHONPATH": path, fake_cuda_ipc.FOLDER: str(shared)}
